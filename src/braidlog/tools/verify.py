"""Verify every byte of a data folder.

Changes nothing and takes no lock. In a folder in use, the end of a partition may be incomplete, which is a note.
"""

import shlex

from braidlog.storage.files import Disk
from braidlog.tools.findings import VerifyReport, is_sound
from braidlog.tools.inspect import Progress
from braidlog.tools.layout import Layout


def verify(
    disk: Disk, path: str, topic: str | None = None, *, progress: Progress | None = None, layout: Layout | None = None
) -> VerifyReport:
    """Verify one topic or, by default, all."""
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
