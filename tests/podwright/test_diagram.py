"""``podwright explain FILE``: everything that will exist is in the diagram, with what it costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright import cli
from podwright.check.load import load
from podwright.diagram import prices
from podwright.diagram.forms import FORMS
from podwright.diagram.parts import Box, Diagram, Part, _Drawing
from podwright.diagram.stack_resources import Resource, decoded, read
from podwright.diagram.svg import NARROW, WIDE, Measures
from podwright.diagram.text_diagram import in_lines, total
from podwright.resource_types import resource_type
from podwright.settings.root import Settings
from podwright_stacks import owner
from podwright_stacks.app import synthesize

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/cluster.yaml"))
Drawn = tuple[Settings, Sequence[Resource], Diagram]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Drawn]:
    """Settings, synthesized resources and diagram of every example."""
    settings = {name: load(ROOT / "examples" / name / "cluster.yaml") for name in EXAMPLES}
    trees = {}
    for name, of in settings.items():
        folder = tmp_path_factory.mktemp(name)
        synthesize(of, folder)
        trees[name] = read(folder)
    return {name: (settings[name], tree, _Drawing(settings[name], tree).finished()) for name, tree in trees.items()}


def texts(diagram: Diagram) -> Mapping[str, str]:
    """The diagram in every form, without the breaks that a card's width makes."""
    forms = {suffix: form(diagram) for suffix, form in FORMS.items()}
    forms |= {end: " ".join(parsed(forms[end]).itertext()) for end in (".svg", ".narrow.svg")}
    joined = {suffix: " ".join(text.split()).replace("- ", "-") for suffix, text in forms.items()}
    return {**joined, "": in_lines(diagram)}


def parsed(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314 — our own


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.slow
def test_everything_is_in_the_diagram(drawn: Mapping[str, Drawn], example: str):
    """Each resource is drawn, or is a detail of one that is; each group, subnet and address block is named."""
    settings, resources, diagram = drawn[example]
    shown = {part.address for part in diagram.parts} | {box.id for box in diagram.boxes}
    shown |= {resource.address for resource in resources if resource.type == "aws_vpc"}
    for text in texts(diagram).values():
        for group in settings.cluster.instance_groups:
            assert group.name in text
            assert f"{group.count} x {group.instance_type}" in text
        for resource in resources:
            if resource.type in {"aws_vpc", "aws_subnet"}:
                assert resource.arguments["cidr_block"] in text
            elif resource.arguments.get("vpc_endpoint_type") == "Interface":
                assert resource.arguments["service_name"].partition("}.")[2] in text
            elif resource_type(resource.type).in_diagram:
                (part,) = [part for part in diagram.parts if part.address == resource.address]
                assert part.name in text
    references = re.compile(r"aws_\w+\.[\w-]+")
    for resource in resources:
        shown_otherwise = {"aws_vpc", "aws_subnet", "aws_s3_object", "aws_cloudcontrolapi_resource"}
        is_hidden = resource.path == owner.ID  # a record in Terraform's state, of no resource
        if not (resource_type(resource.type).in_diagram or resource.type in shown_otherwise or is_hidden):
            around, known = {resource.address}, {item.address: item for item in resources}
            for _ in range(3):  # an association refers to a table, the table to its VPC
                around |= {
                    found for address in around & known.keys() for found in references.findall(str(known[address]))
                }
            users = {item.address for item in resources if resource.address in references.findall(str(item.arguments))}
            assert (around | users) & shown, resource


def test_existing_resources_are_marked(drawn: Mapping[str, Drawn]):
    """Existing resources are drawn as the user's own, by their ids, and cost nothing here."""
    settings, _, diagram = drawn["bring_your_own"]
    yours = {part.name: part for part in diagram.parts if part.is_existing}
    network, bucket, role = settings.network.model_dump(), settings.bucket.model_dump(), settings.role.model_dump()
    lustre = settings.lustre.model_dump()
    assert set(yours) == {network["security_group_id"], bucket["name"], role["arn"], lustre["dns_name"]}
    assert [box.id for box in diagram.subnets] == list(network["subnet_ids"])
    assert {part.usd_per_hour for part in yours.values()} == {0.0}
    assert not any(part.is_existing for part in drawn["production"][2].parts)


@pytest.mark.parametrize("example", EXAMPLES)
def test_costs_add_up(drawn: Mapping[str, Drawn], example: str):
    """The total is the sum of what is printed beside the parts, and what has no price is named beside it."""
    _, _, diagram = drawn[example]
    *lines, end = in_lines(diagram).split("\n\n")
    lines = "\n".join(lines).splitlines()
    total, others = " ".join(end.split()).replace(" All but", "\nAll but").splitlines()
    assert others == "All but nodes has the prices of us-east-1."
    priced = [float(found[1].replace(",", "")) for line in lines if (found := re.search(r" ([\d,]+\.\d\d)$", line))]
    assert float(total.split(" USD/h (EC2 on-demand based")[0].replace(",", "")) == pytest.approx(sum(priced), abs=0.05)
    for part in diagram.parts:
        assert (part.usd_per_hour is None) == (f"{part.kind} {part.name}" in total)


def test_the_minimal_example_by_hand(drawn: Mapping[str, Drawn]):
    """Two nodes with their volumes, 1200 GiB of Lustre and the NAT gateway are what the least cluster costs."""
    ec2 = 0.192 + 5.672  # m5.xlarge and g5.12xlarge, on demand in us-east-1
    by_month = 2 * 500 * 0.08 + 1200 * 0.21
    expected = ec2 + by_month / 730 + 0.045 + 0.005
    assert drawn["minimal"][2].usd_per_hour == pytest.approx(expected)


def test_a_narrow_terminal_gets_narrow_lines(monkeypatch: pytest.MonkeyPatch):
    """On ten columns each word of a part has a line."""
    monkeypatch.setenv("COLUMNS", "10")
    part = Part(kind="OpenZFS", name="shared", usd_per_hour=1.0)
    account = Box("account", "", parts=[part])
    assert "\n    shared\n" in in_lines(Diagram("", Box("vpc", ""), (), account, (), "EC2 on-demand"))


def test_an_unknown_price_is_named():
    """The total names what has no known price."""
    part = Part(kind="OpenZFS", name="shared", usd_per_hour=None)
    account = Box("account", "", parts=[part])
    diagram = Diagram("", Box("vpc", ""), (), account, (), "EC2 on-demand")
    assert total(diagram).endswith("; unknown, and not in the sum: the price of OpenZFS shared")


def test_a_database_with_a_standby_costs_twice():
    """RDS counts class and storage for each zone; a class without a known price has none."""
    database = {"instance_class": "db.t4g.medium", "allocated_storage": 50, "multi_az": False}
    single = 0.065 + 50 * 0.115 / 730
    assert prices.of("aws_db_instance", database) == pytest.approx(single)
    assert prices.of("aws_db_instance", {**database, "multi_az": True}) == pytest.approx(2 * single)
    assert prices.of("aws_db_instance", {**database, "instance_class": "db.x9.huge"}) is None


@pytest.mark.parametrize(("end", "layout"), [(".svg", WIDE), (".narrow.svg", NARROW)])
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_drawing_is_clean(drawn: Mapping[str, Drawn], example: str, end: str, layout: Measures):
    """An SVG loads nothing; no card lies over another, all are within the diagram, and headings fit their boxes."""
    text = FORMS[end](drawn[example][2])
    root = parsed(text)
    assert "href" not in text
    heads = [len(item.text or "") for item in root.iter(f"{SVG}text") if item.get("class") == "head"]
    assert max(heads) <= layout.head_letters
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    cards = [
        [float(item.attrib[key]) for key in ("x", "y", "width", "height")]
        for item in root.iter(f"{SVG}rect")
        if item.attrib["class"].startswith("card")
    ]
    assert len(cards) == len(drawn[example][2].parts)
    for number, (x, y, wide, high) in enumerate(cards):
        assert 0 <= x < x + wide <= width
        assert 0 <= y < y + high <= height
        for other_x, other_y, other_wide, other_high in cards[:number]:
            apart = x + wide <= other_x or other_x + other_wide <= x or y + high <= other_y or other_y + other_high <= y
            assert apart
    assert width == 400 or end == ".svg"
    page = FORMS[".html"](drawn[example][2])
    assert text.strip() in page  # which shows the one that suits its window
    parsed(page.partition("\n")[2])  # the page is XML, too


@pytest.mark.parametrize("example", EXAMPLES)
def test_mermaid_draws_each_part_once(drawn: Mapping[str, Drawn], example: str):
    """Boxes are closed, each part is one node, and each arrow goes from the compute nodes to a node that exists."""
    diagram = drawn[example][2]
    lines = [line.strip() for line in FORMS[".mmd"](diagram).splitlines()]
    assert lines[0] == lines[2] == "---"
    assert total(diagram) in json.loads(lines[1].removeprefix("title: "))
    assert lines[3] == "flowchart LR"
    assert sum(line.startswith("subgraph ") for line in lines) == lines.count("end") == len(diagram.boxes)
    nodes = [
        found[1] for line in lines if (found := re.fullmatch(r'(part\d+)\["[^"\[\]`<>]*(?:<br/>[^"`<>]*)*"\]', line))
    ]
    assert nodes == [f"part{number}" for number in (sorted(int(node[4:]) for node in nodes))]
    assert len(nodes) == len(diagram.parts)
    arrows = [found.groups() for line in lines if (found := re.fullmatch(r'(part\d+) -->\|"[^"]+"\| (part\d+)', line))]
    assert len(arrows) == len(diagram.ways)
    assert {end for arrow in arrows for end in arrow} <= set(nodes)
    assert sum(line.startswith("class ") for line in lines) == any(part.is_existing for part in diagram.parts)


def test_mermaid_takes_any_name():
    """Quotes and signs of a name are written as codes: they end no label and are no HTML."""
    part = Part(kind="Compute", name='a "b" <c> #1')
    account = Box("account", 'of "me"', parts=[part])
    text = FORMS[".mmd"](Diagram("x", Box("vpc", ""), (), account, (), ""))
    assert 'part1["Compute: a #quot;b#quot; #lt;c#gt; #35;1"]' in text
    assert 'subgraph account["of #quot;me#quot;"]' in text


def as_cdktf_writes(value: object) -> str:
    """Write a value as JSON, but for the signs between the keys and values of objects."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_cdktf_writes(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(as_cdktf_writes, value))}]" if isinstance(value, list) else json.dumps(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@pytest.mark.slow
def test_reads_terraforms_objects(value):
    """Objects that cdktf writes into jsonencode, with = for :, are read as they were; a reference is its text."""
    assert decoded("${jsonencode(" + as_cdktf_writes(value) + ")}") == value
    assert decoded('${jsonencode({"a" = [data.x.y["0"].id, 1], "b" = "${x.y}/z"})}') == {
        "a": ['data.x.y["0"].id', 1],
        "b": "${x.y}/z",
    }


def test_prices_that_are_not_known():
    """A type of node or file system without a public price is left open, not counted as nothing."""
    assert prices.nodes("ml.no.such", 1, 1, region="us-east-1") is None
    assert prices.of("aws_fsx_lustre_file_system", {"deployment_type": "PERSISTENT_1", "storage_capacity": 1}) is None
    assert prices.of("aws_fsx_openzfs_file_system", {}) is None
    assert prices.of("aws_s3_bucket", {}) == 0


@pytest.mark.slow
def test_the_command_writes_a_whole_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """-o writes the form that the name says; another name, or an unwritable path, is one line."""
    file = str(ROOT / "examples/bring_your_own/cluster.yaml")
    for suffix in FORMS:
        output = tmp_path / f"architecture{suffix}"
        assert cli.main(["explain", file, "-o", str(output)]) == 0
        assert capsys.readouterr().out == f"{output}\n"
        assert "sagemaker-research-cluster-scripts" in output.read_text(encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == len(FORMS)
    for wrong, message, status in (
        ("x.pdf", "need a name that ends in .svg", 2),
        ("architecture.svg/x.md", "cannot write", 1),
    ):
        assert cli.main(["explain", file, "-o", str(tmp_path / wrong)]) == status
        assert message in capsys.readouterr().err
    assert cli.main(["explain", str(tmp_path / "absent.yaml")]) == 2


def test_keys_are_explained_without_drawing():
    """A key is a key though a folder of its name is there, and cdktf is not loaded for it."""
    code = "import sys; from podwright import cli; cli.main(['explain', 'network']); assert 'cdktf' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("network\n")
