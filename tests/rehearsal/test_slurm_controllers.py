"""Two controllers, a database apart and a secret: the second takes over when the first has lost its power."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from podwright_bootstrap.contract import Accounting, MultiHead, ProvisioningParameters, WorkerGroup
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing.boots import require_booted

pytestmark = pytest.mark.hosts
PRIMARY, BACKUP, COMPUTE, DATABASE = "ip-10-0-16-5", "ip-10-0-16-8", "ip-10-0-16-6", "ip-10-0-16-9"
SECRET_ARN = "arn:aws:secretsmanager:us-west-2:111122223333:secret:slurm"  # noqa: S105
PASSWORD = 'o"n\\e#t+w0='  # noqa: S105 -- what RDS might make up, and a quote
SECRET = {"username": "admin", "password": PASSWORD}  # what Secrets Manager says today
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    controller_group="controller",
    login_group="login",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    region="us-west-2",
    accounting=Accounting(DATABASE, 3306, SECRET_ARN),
    multi_head=MultiHead(SECRET_ARN, DATABASE, "/fsx"),
)


@pytest.fixture(scope="module")
def secrets_manager() -> Iterator[tuple[str, int]]:
    """AWS's API, as far as `aws secretsmanager get-secret-value` asks it."""

    class Secret(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.dumps(SECRET)
            body = json.dumps({"ARN": SECRET_ARN, "Name": "slurm", "SecretString": text}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Secret) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield "127.0.0.1", server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def cluster(make_cluster, make_node, secrets_manager, bundle) -> NamespacedCluster:
    """A cluster of two controllers that booted twice; the login node's MariaDB stands for RDS."""
    scripts = bundle(PARAMETERS)
    cluster = make_cluster(
        relay=secrets_manager,
        nodes=[
            make_node(PRIMARY, role="controller"),
            make_node(BACKUP, role="controller"),
            dataclasses.replace(make_node(COMPUTE), accelerators=0),
            make_node(DATABASE, role="login"),
        ],
        environment={
            "PODWRIGHT_PATIENCE": "0.5",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{secrets_manager[1]}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        },
    )
    cluster.start()
    cluster.path(DATABASE, "/etc/mysql/mariadb.conf.d/99-rds.cnf").write_text("[mariadbd]\nbind_address=0.0.0.0\n")
    quoted = PASSWORD.replace("\\", "\\\\")
    grant = f"GRANT ALL ON *.* TO 'admin'@'%' IDENTIFIED BY '{quoted}' WITH GRANT OPTION"
    cluster.path(DATABASE, "/root/grant.sql").write_text(grant)
    cluster.run("systemctl start mariadb && mysql < /root/grant.sql", host=DATABASE, user="root")
    for _ in range(2):
        require_booted(cluster.boot(scripts, timeout_s=600).values())
    cluster.wait_until_idle([COMPUTE], timeout_s=600)
    return cluster


def test_second_boot_changes_nothing(cluster):
    """Files are shared once, and whoever is second takes what it finds."""
    for hostname in (PRIMARY, BACKUP):
        assert ", 0 changes, " in (cluster.directory / f"{hostname}-boot-2.log").read_text()
        state = cluster.run("readlink -f /var/spool/slurmctld /opt/slurm/etc/slurm.conf", host=hostname).stdout
        root = "/fsx/aws/hyperpod/demo"
        assert state.split() == [f"{root}/var/spool/slurmctld", f"{root}/opt/slurm/etc/slurm.conf"]


def test_the_password_is_nowhere_but_in_its_file(cluster):
    """Neither log, nor shared file system, nor an argument holds what Secrets Manager said."""
    logs = "".join(path.read_text(errors="replace") for path in cluster.directory.glob("*.log"))
    calls = "".join(line for name in (PRIMARY, BACKUP) for line in cluster.shim_calls(name))
    assert "t+w0=" not in logs + calls
    assert cluster.run("grep -rFl 't+w0=' /fsx/aws /opt/podwright", user="root", check=False).stdout == ""
    assert "t+w0=" in cluster.path(BACKUP, "/opt/slurm/etc/slurmdbd.conf").read_text()


def test_a_changed_password_reaches_slurmdbd(cluster):
    """The timer's service gives slurmdbd a password that RDS has changed, and accounting goes on."""
    SECRET["password"] = "another"  # noqa: S105
    cluster.run("mysql --execute \"ALTER USER 'admin'@'%' IDENTIFIED BY 'another'\"", host=DATABASE, user="root")
    for hostname in (PRIMARY, BACKUP):
        cluster.run("systemctl start podwright-accounting.service", host=hostname, user="root")
        assert "StoragePass=another\n" in cluster.path(hostname, "/opt/slurm/etc/slurmdbd.conf").read_text()
    assert "demo" in cluster.run("sacctmgr --noheader show cluster").stdout


def test_the_second_takes_over(cluster):
    """After the first controller's loss the second runs jobs, and sacct knows those of before and after."""

    def run(line: str) -> str:
        return cluster.run(line, host=BACKUP, check=False, timeout_s=600).stdout

    cluster.run("srun --partition gpu --job-name before true")
    state = cluster.directory / "fsx/aws/hyperpod/demo/var/spool/slurmctld/job_state"
    wait_for(
        lambda: state.exists() and "COMPLETED" in run("sacct --name before --noheader --format=State --allocations"),
        timeout_s=600,
        what=lambda: f"the first job to be remembered: {run('sacct')}",
    )
    cluster.kill(PRIMARY, how="power")
    wait_for(
        lambda: "(backup) at ip-10-0-16-8 is UP" in run("scontrol ping"),
        timeout_s=600,
        what=lambda: f"the backup to take over: {run('scontrol ping; sinfo')}",
    )
    wait_for(
        lambda: cluster.run("srun --partition gpu --job-name after true", host=BACKUP, check=False).returncode == 0,
        timeout_s=600,
        what=lambda: f"a job to run: {run('sinfo; squeue')}",
    )
    wait_for(
        lambda: {"before", "after"} <= set(run("sacct --noheader --format=JobName --allocations").split()),
        timeout_s=600,
        what=lambda: f"both jobs in sacct: {run('sacct')}",
    )
