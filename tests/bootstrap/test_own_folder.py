"""Folders of root's and of jobs, where users got there first."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.storage.own_folder import make_for, make_own

pytestmark = pytest.mark.hosts  # needs root
USER = 54321


@pytest.fixture
def public(tmp_path):
    """A folder like /tmp, and a victim of root's."""
    (tmp_path / "victim").mkdir(mode=0o700)
    folder = tmp_path / "public"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def _plant(path, kind):
    if kind == "file":
        path.touch()
    elif kind == "folder":
        path.mkdir()
        path.chmod(0o777)
    elif kind == "link":
        path.symlink_to(path.parent.parent / "victim")
    if kind != "nothing":
        os.chown(path, USER, USER, follow_symlinks=False)


@pytest.mark.parametrize("kind", ["nothing", "file", "folder", "link"])
def test_what_a_user_planted_is_moved_aside(public, kind):
    """Root's folder is root's with its mode, made once, and what a link led to is untouched."""
    path = public / "jobs"
    _plant(path, kind)
    changes = list(make_own(path, mode=0o711))
    assert len(changes) == (1 if kind == "nothing" else 2)
    status = path.lstat()
    assert (status.st_uid, oct(status.st_mode)) == (0, "0o40711")
    assert (public.parent / "victim").stat().st_mode & 0o777 == 0o700
    assert list(make_own(path, mode=0o711)) == []


def test_nobody_else_can_rename_a_folder_of_ours(public):
    """A parent that everybody may write gets the sticky bit: only root renames root's folder there."""
    public.chmod(0o777)
    assert len(list(make_own(public / "jobs", mode=0o711))) == 2
    assert public.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("kind", ["nothing", "file", "folder", "link"])
def test_a_job_gets_a_folder_of_its_own(public, kind):
    """A job's folder is the user's alone, and follows no link; the job that comes again keeps what it wrote."""
    jobs = public / "jobs"
    list(make_own(jobs, mode=0o711))
    _plant(jobs / "7", kind)
    changes = list(make_for(jobs / "7", uid=USER + 1, gid=USER + 1, mode=0o700))
    assert len(changes) == (1 if kind == "nothing" else 2)
    (jobs / "7" / "kept").touch()
    assert list(make_for(jobs / "7", uid=USER + 1, gid=-1, mode=0o700)) == []
    status = (jobs / "7").lstat()
    assert (status.st_uid, status.st_gid, oct(status.st_mode)) == (USER + 1, USER + 1, "0o40700")
    assert (jobs / "7" / "kept").exists()
    assert (public.parent / "victim").stat().st_uid == 0


def test_hosts_that_make_a_folder_at_once_make_one(public):
    """The nodes of a job share the folder of its user: nothing is moved aside, and what is in it stays."""
    jobs = public / "jobs"
    list(make_own(jobs, mode=0o711))

    def make(name):
        list(make_for(jobs / name, uid=USER, gid=USER, mode=0o700))
        (jobs / name / "kept").touch()

    names = [str(number // 8) for number in range(800)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, names))
    assert {path.name for path in jobs.iterdir()} == set(names)
    assert {path.stat().st_uid for path in jobs.iterdir()} == {USER}


def test_a_job_gets_no_folder_where_others_may_write(public):
    """The parent is root's alone, or there is no folder."""
    with pytest.raises(BootstrapError, match="public: got owner uid 0, mode 1777"):
        list(make_for(public / "7", uid=USER, gid=USER, mode=0o700))
