"""Read every byte of a data folder and say whether it is what was written.

Knows: how to put the findings of all partitions together. Refuses to know: how they are shown, how they are mended.
Invariant: changes nothing and takes no lock. On a folder in use the end of a partition may be seen half-written: that is a note.
"""

import shlex

from braidlog.storage.files import Disk
from braidlog.tools.findings import VerifyReport, is_sound
from braidlog.tools.inspect import Progress
from braidlog.tools.layout import Layout


def verify(
    disk: Disk, path: str, topic: str | None = None, *, progress: Progress | None = None, layout: Layout | None = None
) -> VerifyReport:
    """Check one topic or, by default, everything."""
    layout = layout or Layout(disk, path)
    reports = [
        layout.inspect(place, partition, progress=progress).report
        for place in layout.choose(topic)
        for partition in place.meta.held
    ]
    loose = [finding for finding in layout.findings if topic is None or finding.topic in (None, topic)]
    sound = is_sound(loose) and all(is_sound(report.findings) for report in reports)
    return VerifyReport(
        folder=path,
        sound=sound,
        bytes_read=sum(report.bytes_read for report in reports),
        findings=loose,
        partitions=reports,
        next_command=None if sound else f"braid log repair --dry-run {shlex.quote(path)}",
    )
