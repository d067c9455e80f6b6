"""What all tests share: hypothesis without clocks. A busy machine is slow, not wrong."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "braidlog",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("braidlog")
