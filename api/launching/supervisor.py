"""Runs one driver and records its exit code.

Usage: supervisor.py RUN_DIRECTORY PROGRAM [ARGUMENT ...]

It is a separate process in a separate session: the driver outlives the control plane, and its exit code is known
afterwards. It writes into the run directory:

    process.json   this process, as the run's supervisor: a second supervisor of the same attempt ends immediately
    driver.log     the driver's output, with the secrets of its environment masked; see `driver_log`
    exit_code      written when the driver has ended

The driver may run as another user, who can neither read nor change these files.

It imports only the log, the mask and the use of the disk of Keyscale, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[3]))  # it is started by its path, apart from the package
from keyscale.api.launching.disk_use import disk_use_bytes
from keyscale.api.launching.driver_log import LogWriter
from keyscale.jobs.protocol.exit_codes import ENDS_ASLEEP
from keyscale.jobs.protocol.redaction import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

EXIT_SUPERVISED_ALREADY = 0
EXIT_CANNOT_RUN = 127
EXIT_DISK_FULL = 122
"""The files of the job take more than its quota: the supervisor has ended the driver."""
EXIT_CODE_FILE = "exit_code"
DISK_POLL_S = 10.0
DRIVER_USER_VARIABLE = "KEYSCALE_DRIVER_USER"
"""The driver's user, if it is not the supervisor's: uid, gid and further groups, separated by colons."""
DRIVER_QUOTA_VARIABLE = "KEYSCALE_DRIVER_QUOTA"
"""The driver's quota as JSON: `processes` of the job's own user, `file_bytes`, `disk_bytes`, and `cgroup`, to join."""
OOM_SCORE_MORE = 500
"""When memory ends, the kernel ends a job's process before a control plane or a database with twice the memory."""
OOM_SCORE_MAX = 1000
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK_BYTES = 1 << 16
_CUT_CHARACTER = re.compile(rb"[\xc2-\xf4][\x80-\xbf]{0,2}\Z")
_LINE_BYTES_MAX = 1 << 20
_PAUSE_S = 1.0
_LAST_WORDS_S = 2.0


def main(arguments: list[str]) -> int:
    """Runs the program; returns its exit code."""
    directory, command = Path(arguments[0]), arguments[1:]
    if not register(directory):
        return EXIT_SUPERVISED_ALREADY
    leave_signals_to_driver()
    code = run(directory, command)
    write_atomically(directory / EXIT_CODE_FILE, str(code))
    return code


@dataclass(slots=True)
class Output:
    """The log of a driver's output, and the mask of its secrets."""

    log: LogWriter
    mask: Mask


def leave_signals_to_driver() -> None:
    """Ignores signals to the session, which are for the driver.

    The supervisor must still record how the driver ended.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def register(directory: Path, **facts: str) -> bool:
    """Registers this process as the run's supervisor.

    The first process to link the file wins.

    Args:
        directory: The run's directory.
        facts: What else the registration tells.

    Returns:
        Whether this process is the run's supervisor.
    """
    process = psutil.Process()
    mine = directory / f"process.json.{process.pid}"
    write_atomically(mine, json.dumps({"pid": process.pid, "started_at_s": process.create_time(), **facts}))
    try:
        os.link(mine, directory / "process.json")
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def run(directory: Path, command: list[str]) -> int:
    """Runs the driver until it ends; returns its exit code.

    The code follows the shell's convention if a signal ended the driver.
    """
    output = Output(LogWriter(directory), Mask(os.environ))
    quota = quota_of_environment()
    try:
        driver, copying = start(directory, command, output, quota)
    except OSError as error:
        output.log.write(f"the driver cannot be started: {error}\n".encode())
        return EXIT_CANNOT_RUN
    return ended(driver, copying, output, quota, [directory.parent])


def quota_of_environment() -> dict[str, Any]:
    """Takes the driver's quota out of the environment."""
    quota: dict[str, Any] = json.loads(os.environ.pop(DRIVER_QUOTA_VARIABLE, "{}"))
    return quota


def start(
    directory: Path, command: list[str], output: Output, quota: Mapping[str, Any]
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts a driver.

    Returns its process and the thread that copies its output.

    Raises:
        OSError: The driver cannot be started.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a sleeping driver loses its parent
    source, of_driver = os.pipe()
    user = [int(number) for number in os.environ.pop(DRIVER_USER_VARIABLE, "").split(":") if number]
    if user:
        give_up_privileges()
        os.fchown(of_driver, user[0], user[1])  # a sleeping driver opens the output of its JVM again
    try:
        accept_quota(quota, has_user=bool(user))
        with ended_first_without_memory():
            driver = subprocess.Popen(  # noqa: S603 - the launcher made the command
                command,
                stdin=subprocess.DEVNULL,
                stdout=of_driver,
                stderr=subprocess.STDOUT,
                cwd=directory,
                user=user[0] if user else None,
                group=user[1] if user else None,
                extra_groups=user[2:] if user else None,
            )
    finally:
        os.close(of_driver)
    # A process that the driver has left behind may hold the pipe forever, and must not keep the exit code back.
    copying = threading.Thread(target=copy_masked, args=(source, output), daemon=True)
    copying.start()
    return driver, copying


def ended(
    driver: subprocess.Popen[bytes],
    copying: threading.Thread,
    output: Output,
    quota: Mapping[str, Any],
    places: Sequence[Path],
) -> int:
    """Waits until a driver ends; returns its exit code.

    The last output is in the log by then. `places` are the directories of the job's files.
    """
    code = waited(driver, places, quota.get("disk_bytes"), output.log)
    if code in ENDS_ASLEEP:
        code = orphans_ended(code)
    copying.join(_LAST_WORDS_S)
    return code if code >= 0 else 128 - code


def waited(driver: subprocess.Popen[bytes], places: Sequence[Path], disk_bytes: int | None, log: LogWriter) -> int:
    """Waits until the driver ends; returns its exit code.

    A driver is ended if the files of its job take too much space.
    """
    while True:
        try:
            return driver.wait(None if disk_bytes is None else DISK_POLL_S)
        except subprocess.TimeoutExpired:
            used = sum(map(disk_use_bytes, places))
        if disk_bytes is not None and used > disk_bytes:
            driver.kill()
            driver.wait()
            log.write(f"the files of the job take {used >> 20} MiB, more than {disk_bytes >> 20} MiB\n".encode())
            return EXIT_DISK_FULL


def orphans_ended(code: int) -> int:
    """Waits until all children have ended.

    Returns the exit code of the last child; `code` without a child, as a script may end with any code.
    """
    while True:
        try:
            _, status = os.wait()
        except ChildProcessError:
            return code
        code = os.waitstatus_to_exitcode(status)


def give_up_privileges() -> None:
    """Keeps this process and its children from getting more rights.

    A setuid program, for example, gives no rights. Crashes write no memory to disk.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def accept_quota(quota: Mapping[str, Any], *, has_user: bool) -> None:
    """Puts this process and its children under the job's quota.

    Args:
        quota: The quota, as in the variable.
        has_user: Whether the driver gets a user of its own, whose processes the kernel then counts.

    Raises:
        OSError: A limit cannot be set: the driver must not start without.
    """
    if (cgroup := quota.get("cgroup")) is not None:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    limits = {
        resource.RLIMIT_NPROC: quota.get("processes") if has_user else None,
        resource.RLIMIT_FSIZE: quota.get("file_bytes"),
    }
    for limit, most in limits.items():
        if most is not None:
            resource.setrlimit(limit, (most, most))


@contextlib.contextmanager
def ended_first_without_memory() -> Iterator[None]:
    """Makes processes the kernel's first choice when memory ends.

    This applies to processes that start within the block. A user without further rights cannot take it back.
    """
    file = Path("/proc/self/oom_score_adj")
    try:
        score = int(file.read_text())
        file.write_text(str(min(OOM_SCORE_MAX, score + OOM_SCORE_MORE)))
    except OSError:  # no such system
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.write_text(str(score))


def copy_masked(source: int, output: Output) -> None:
    """Copies lines from a descriptor to a log until the source ends.

    Secrets are masked. The output may change while its lines are copied.
    """
    rest = b""
    poller = select.poll()
    poller.register(source, select.POLLIN)
    while True:
        # A line that pauses waits for its end, but not forever. A possible beginning of a secret waits for more.
        if rest and (len(rest) > _LINE_BYTES_MAX or not poller.poll(_PAUSE_S * 1000)):
            rest = write_masked(rest, output)
        chunk = os.read(source, _CHUNK_BYTES)
        if not chunk:
            output.log.write(masked(rest, output.mask))
            return
        lines, newline, unfinished = (rest + chunk).rpartition(b"\n")
        rest = write_masked(lines + newline, output) + unfinished


def write_masked(text: bytes, output: Output) -> bytes:
    """Writes a part of a log with secrets masked.

    Returns its end if that may be the beginning of a secret.
    """
    mask = output.mask
    whole = _CUT_CHARACTER.sub(b"", text)
    end = mask.unfinished(whole.decode(errors="surrogateescape"))
    written = whole.decode(errors="surrogateescape")[: -end or None].encode(errors="surrogateescape")
    output.log.write(masked(written, mask))
    return text[len(written) :]


def masked(text: bytes, mask: Mask) -> bytes:
    """Masks secrets in a part of a log.

    Bytes that are not UTF-8 stay unchanged.
    """
    return mask(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def write_atomically(path: Path, text: str) -> None:
    """Writes a file completely or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
