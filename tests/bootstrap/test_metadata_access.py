"""The instance's metadata service, behind a real nftables: root reaches it, users do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from podwright_testing.debians import unpacked

pytestmark = pytest.mark.hosts

# The program and those of its libraries that Debian's base lacks.
PACKAGES = ("nftables", "libnftables1", "libnftnl11", "libjansson4", "libmnl0", "libxtables12", "libedit2", "libbsd0")
STEP = "./on_create.sh --only metadata_access"
# nodad: without it an IPv6 address is tentative until the kernel's worker has run, and nobody may bind to it.
SERVE = """
ip address add 169.254.169.254/32 dev lo
python3 -m http.server --bind 169.254.169.254 80 >/dev/null 2>&1 &
trap "kill $!" EXIT
until (exec 3<>/dev/tcp/169.254.169.254/80) 2>/dev/null; do kill -0 $! && sleep 0.1 || exit 1; done
ip address add fd00:ec2::254/128 dev lo nodad
python3 -m http.server --bind fd00:ec2::254 80 >/dev/null 2>&1 &
trap "kill $(jobs -p | tr '\\n' ' ')" EXIT
until (exec 3<>/dev/tcp/fd00:ec2::254/80) 2>/dev/null; do kill -0 $! && sleep 0.1 || exit 1; done
forms='169.254.169.254 2852039166 0xA9FEA9FE 0251.0376.0251.0376 169.16689662 ::ffff:169.254.169.254 fd00:ec2::254'
ask() {
  for form in $forms; do
    runuser -u "$1" -- bash -c "exec 3<>/dev/tcp/$form/80" 2>/dev/null && echo "$1 in" || echo "$1 out"
  done | sort --unique
}
"""


@pytest.fixture(scope="session")
def nftables() -> Path:
    """Debian's nft, unpacked once."""
    return unpacked("nftables", PACKAGES)


def test_only_root_and_named_users_have_the_role(make_host, cloud, nftables):
    """Root and a named user reach the service, the others by no form of its address; a second boot changes nothing."""
    cloud.contract["podwright"]["nodes"] = {"metadata_access": {"users": ["ubuntu"]}}
    host = make_host()
    install(nftables, host)
    boot = host.boot(f"{SERVE}\nask nobody; {STEP} && {STEP} && for user in root ubuntu nobody; do ask $user; done")
    assert boot.exit_code == 0, boot.output
    assert boot.output.splitlines()[0] == "nobody in"
    assert boot.output.splitlines()[-3:] == ["root in", "ubuntu in", "nobody out"]
    assert [summary.split(", ")[1] for summary in boot.summaries] == ["4 changes", "0 changes"]


def test_only_root_has_the_role_of_a_controller(make_host, nftables):
    """On a controller the service is root's alone without a word in cluster.yaml, also after a second boot."""
    host = make_host(role="controller")
    install(nftables, host)
    boot = host.boot(f"{SERVE}\n{STEP} && {STEP} && for user in root ubuntu nobody; do ask $user; done")
    assert boot.exit_code == 0, boot.output
    assert boot.output.splitlines()[-3:] == ["root in", "ubuntu out", "nobody out"]
    assert [summary.split(", ")[1] for summary in boot.summaries] == ["4 changes", "0 changes"]


def test_other_users_do_not_have_the_role_by_default(make_host, nftables):
    """Without a word in cluster.yaml root and the job user have the role of a node, and no other user."""
    host = make_host()
    install(nftables, host)
    boot = host.boot(f"{SERVE}\n{STEP} && {STEP} && for user in root ubuntu nobody; do ask $user; done")
    assert boot.exit_code == 0, boot.output
    assert boot.output.splitlines()[-3:] == ["root in", "ubuntu in", "nobody out"]
    assert [summary.split(", ")[1] for summary in boot.summaries] == ["4 changes", "0 changes"]


GIVE_TO_EVERYBODY = """
python3 - <<'PYTHON'
import json, pathlib
path = pathlib.Path("provisioning_parameters.json")
content = json.loads(path.read_text())
content["podwright"]["nodes"] = {"metadata_access": {"everybody": True}}
path.write_text(json.dumps(content))
PYTHON
"""


def test_everybody_has_the_role_if_cluster_yaml_says_so(make_host, nftables):
    """Rules of an earlier boot are removed when cluster.yaml gives the role to everybody."""
    host = make_host()
    install(nftables, host)
    boot = host.boot(f"{SERVE}\n{STEP}; ask nobody\n{GIVE_TO_EVERYBODY}\n{STEP}; ask nobody")
    assert boot.exit_code == 0, boot.output
    assert [line for line in boot.output.splitlines() if line.startswith("nobody ")] == ["nobody out", "nobody in"]


# A service that answers IMDSv2's requests, and an nft with which root is rejected too: as if programs had the role from
# an agent of the image, which asks the service as another user.
ANSWER = """
cat >/tmp/serve.py <<'PYTHON'
from http.server import BaseHTTPRequestHandler, HTTPServer
class Service(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"node-role")
    do_PUT = do_GET
HTTPServer(("169.254.169.254", 80), Service).serve_forever()
PYTHON
ip address add 169.254.169.254/32 dev lo
python3 /tmp/serve.py >/dev/null 2>&1 &
trap "kill $!" EXIT
until (exec 3<>/dev/tcp/169.254.169.254/80) 2>/dev/null; do kill -0 $! && sleep 0.1 || exit 1; done
sed -i '2i case "$*" in *--file*) sed -i "s/{ 0, /{ /" /opt/podwright/metadata.nft;; esac' /opt/shims/nft
"""


@pytest.mark.parametrize("asked", [False, True])
def test_rules_that_take_the_role_from_root_are_taken_back(make_host, cloud, nftables, asked):
    """A node that loses its role by the rules lets everybody in, and warns or, if cluster.yaml asks for them, fails."""
    if asked:
        cloud.contract["podwright"]["nodes"] = {"metadata_access": {"users": ["ubuntu"]}}
    host = make_host()
    install(nftables, host)
    line = "runuser -u nobody -- bash -c 'exec 3<>/dev/tcp/169.254.169.254/80' && echo nobody in"
    boot = host.boot(f"{ANSWER}\n{STEP}; {line}")
    assert "root's programs have lost the node's role" in boot.output
    assert ("warning: every user can read" in boot.output) == (not asked)
    assert boot.output.splitlines()[-1] == "nobody in"


def install(nftables, host):
    """Give a host Debian's nft."""
    host.write(
        "opt/shims/nft",
        f'#!/bin/sh\nLD_LIBRARY_PATH=$(echo {nftables}/usr/lib/*-linux-gnu) exec {nftables}/usr/sbin/nft "$@"\n',
        mode=0o755,
    )


def test_an_image_without_nftables_is_a_warning(make_host, cloud):
    """A node that cannot keep users out says so, and boots."""
    if shutil.which("nft"):
        pytest.skip("this machine has nft")
    cloud.contract["podwright"]["nodes"] = {"metadata_access": {"users": []}}
    boot = make_host().boot(STEP)
    assert boot.exit_code == 0, boot.output
    assert "warning: every user can read the instance's metadata: this image lacks nft" in boot.output
