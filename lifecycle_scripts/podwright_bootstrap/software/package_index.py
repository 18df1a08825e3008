"""The package index that pip is configured for on this node, as uv's options: uv does not read pip's configuration.

https://pip.pypa.io/en/stable/topics/configuration/
https://docs.astral.sh/uv/reference/environment/
"""

from __future__ import annotations

import os
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

SECTIONS = ("global", "download", "install")  # a later one wins
FALSE = {"", "0", "false", "no", "off"}


@dataclass(frozen=True)
class PackageIndex:
    """The sources of packages. Default: uv's own default index."""

    index_url: str = ""
    extra_index_urls: Tuple[str, ...] = ()
    find_links: Tuple[str, ...] = ()  # folders or pages of wheels
    trusted_hosts: Tuple[str, ...] = ()
    certificates: str = ""  # PEM file
    no_index: bool = False  # find_links alone

    @classmethod
    def configured(cls) -> PackageIndex:
        """Read pip's files and variables; a variable wins over a file."""
        options = _options(os.environ)
        return cls(
            index_url=options.get("index-url", ""),
            extra_index_urls=tuple(options.get("extra-index-url", "").split()),
            find_links=tuple(options.get("find-links", "").split()),
            trusted_hosts=tuple(options.get("trusted-host", "").split()),
            certificates=options.get("cert", ""),
            no_index=options.get("no-index", "").lower() not in FALSE,
        )

    @property
    def options(self) -> Tuple[str, ...]:
        """Return uv's options."""
        return ("--no-index",) if self.no_index else ()

    @property
    def variables(self) -> Dict[str, str]:
        """Return uv's variables: unlike options, they do not put a password in an URL into the log."""
        variables = {
            "UV_DEFAULT_INDEX": self.index_url,
            "UV_INDEX": " ".join(self.extra_index_urls),
            "UV_FIND_LINKS": ",".join(self.find_links),
            "UV_INSECURE_HOST": " ".join(self.trusted_hosts),
            "SSL_CERT_FILE": self.certificates,
        }
        return {name: value for name, value in variables.items() if value and name not in os.environ}

    def find(self, filename: str) -> Optional[Path]:
        """Return the file of that name in one of the folders, if there is one."""
        folders = [Path(urlsplit(link).path) for link in self.find_links]
        return next((folder / filename for folder in folders if (folder / filename).is_file()), None)


def _options(variables: Mapping[str, str]) -> Dict[str, str]:
    options: Dict[str, str] = {}
    parser = ConfigParser(interpolation=None)
    for path in _files(variables):
        try:
            parser.read(path)
        except (ConfigError, OSError, UnicodeDecodeError):
            continue  # pip would stop; uv needs no file of pip's
    for section in SECTIONS:
        if parser.has_section(section):
            options.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    named = {name[4:].lower().replace("_", "-"): value for name, value in variables.items() if name.startswith("PIP_")}
    return {**options, **named}


def _files(variables: Mapping[str, str]) -> List[Path]:
    """In pip's order: a later file wins; the null device as PIP_CONFIG_FILE switches all off."""
    named_file = variables.get("PIP_CONFIG_FILE", "")
    if named_file == os.devnull:
        return []
    home = Path(variables.get("HOME", "/root"))
    user = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", user / "pip/pip.conf"]
    return [*files, *([Path(named_file)] if named_file else [])]
