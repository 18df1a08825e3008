"""A diagram in Mermaid's language, which GitHub, GitLab and many wikis draw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from podwright.diagram.parts import Box, Diagram, Part
from podwright.diagram.text_diagram import cost, heading, total

INDENT = "  "
# In quotes, and with the codes of what would end them or be read as HTML: https://mermaid.js.org/syntax/flowchart.html
CODES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"})


def mermaid(diagram: Diagram) -> str:
    """Boxes in boxes, each part with its cost, and connections from the compute nodes; the title has the sum."""
    names = {id(part): f"part{number}" for number, part in enumerate(diagram.parts, 1)}
    lines = ["---", f"title: {json.dumps(f'{diagram.name}: {total(diagram)}', ensure_ascii=False)}", "---"]
    lines.append("flowchart LR")
    inner = [line for number, box in enumerate(diagram.subnets, 1) for line in _box(f"subnet{number}", box, names)]
    lines += _indented(_box("network", diagram.network, names, inner))
    lines += _indented(_box("account", diagram.account, names))
    lines += _indented(_ways(diagram, names))
    existing = [names[id(part)] for part in diagram.parts if part.is_existing]
    if existing:
        lines += _indented(["classDef existing stroke-dasharray:5 4", f"class {','.join(existing)} existing"])
    return "\n".join(lines) + "\n"


def _box(name: str, box: Box, names: dict[int, str], inner: Iterable[str] = ()) -> Iterator[str]:
    yield f"subgraph {name}[{_quoted(heading(box))}]"
    yield from _indented([*inner, *(f"{names[id(part)]}[{_card(part)}]" for part in box.parts)])
    yield "end"


def _card(part: Part) -> str:
    price = f"{cost(part)} USD/h" if part.usd_per_hour else cost(part)
    kind = f"{part.kind} (yours)" if part.is_existing else part.kind
    return _quoted(*filter(None, [f"{kind}: {part.name}", part.detail, price]))


def _ways(diagram: Diagram, names: dict[int, str]) -> Iterator[str]:
    """Yield an arrow from the compute nodes to the first part of each kind that they reach."""
    first_part_by_kind: dict[str, str] = {}
    for part in diagram.parts:
        first_part_by_kind.setdefault(part.kind, names[id(part)])
    start = first_part_by_kind.get("Compute") or first_part_by_kind["Controller"]
    for target, labels in diagram.ways.items():
        yield f"{start} -->|{_quoted(', '.join(labels))}| {first_part_by_kind[target]}"


def _quoted(*lines: str) -> str:
    return '"' + "<br/>".join(line.translate(CODES) for line in lines) + '"'


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (INDENT + line for line in lines)
