"""Render shell scripts from jinja2 templates. Values are not escaped: quote them for the shell."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).parent / "slurm"


def render(template: Path, **values: object) -> str:
    """Return the script of a template, which may include others of its folder and of ``slurm/``.

    Raises:
        jinja2.UndefinedError: The template uses a value that is not given.
    """
    import jinja2  # --help does without

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, SHARED]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a shell script
    )
    return templates.get_template(template.name).render(**values)
