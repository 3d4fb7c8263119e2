"""YAML from the internet: loaded as plain text, lists and mappings, within bounds.

Nothing is constructed from tags, scalars stay as they are written (`off`, `0.90`, `8000:8000`),
and aliases can't blow up: merges are counted. Needs PyYAML (extra [manifests]).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.errors import InputError, UsageError

_LONGEST = 1_000_000
_MOST_DOCUMENTS = 1_000
_MOST_MERGED = 100_000
_TEMPLATE = "{{"


def load_yaml(text: str) -> list[Any]:
    """The documents of `text`; empty ones left out.

    Raises InputError for what is no YAML or too large, UsageError without PyYAML.
    """
    if len(text) > _LONGEST:
        raise InputError(f"the YAML has {len(text):,} characters", hint="give the one part")
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "reading YAML needs an extra", hint="pip install 'kvproof[manifests]'"
        ) from None
    documents = []
    try:
        for document in yaml.load_all(text, Loader=yaml.BaseLoader):
            documents.append(_Merging().merged(document))
            if len(documents) > _MOST_DOCUMENTS:
                raise InputError("the YAML has too many documents", hint="give the one part")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = " ".join(str(error).split())
        hint = "render the template first" if _TEMPLATE in text else "check the file"
        raise InputError(f"no YAML: {line[:120]}", hint=hint) from None
    return [document for document in documents if document not in ("", None)]


class _Merging:
    """Resolves `<<` in a tree whose parts may be shared, each part once."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.count = 0

    def merged(self, node: Any) -> Any:
        """The tree without `<<`; a part that holds itself stays as it is."""
        if not isinstance(node, dict | list):
            return node
        if id(node) in self.done:
            return self.done[id(node)]
        self.done[id(node)] = node
        if isinstance(node, list):
            node[:] = [self.merged(part) for part in node]
            return node
        own = {key: self.merged(value) for key, value in node.items() if key != "<<"}
        if "<<" in node:
            given = self.merged(node["<<"])
            for part in given if isinstance(given, list) else [given]:
                for key, value in part.items() if isinstance(part, Mapping) else ():
                    own.setdefault(key, value)
            self.count += len(own)
            if self.count > _MOST_MERGED:
                raise InputError("the YAML merges too much", hint="give the one part")
        node.clear()
        node.update(own)
        return node
