"""What a server says of the model that it loaded, beside the model's own description."""

from __future__ import annotations

from kvproof.model.types import Model
from kvproof.model.weights import weight_bytes
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.figures import Log


def model_rows(log: Log, model: Model) -> list[Comparison]:
    """Parameters and weight bytes, where they are reported and the description gives them."""
    if not model.tensors and model.stored_weight_bytes is None:
        return []
    rows = []
    for name, value, cause in (
        ("parameters", model.parameters, "another model than the one named"),
        ("weight_bytes", weight_bytes(model), "stored in other types than described"),
    ):
        figure = log.get(name)
        if figure is not None:
            rows.append(compared(figure, value, exact=True, cause=cause))
    return rows
