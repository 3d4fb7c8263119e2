"""Measure what media occupy with the processors of the installed transformers.

Every case builds a real image, video or audio processor (no download), runs it on blank media
and counts the special tokens of the replacement that the model's Processor writes. Words, digits
and timestamps are left out: they depend on the tokenizer. Encoder lengths come from tiny models.

    python scripts/measure_multimodal.py tests/ground_truth/multimodal.json

needs torch, transformers and pillow. Without torchvision a stand-in with the few functions that
processors call is written to a temporary folder first.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from media_measures.encoders import encoders, features
from media_measures.pictures import images, videos
from media_measures.sound import audios
from media_measures.stand_in import install_stand_in


def main() -> None:
    install_stand_in()
    warnings.filterwarnings("ignore")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    parts = {
        "images": images,
        "videos": videos,
        "audios": audios,
        "encoders": encoders,
        "features": features,
    }
    chosen = sys.argv[2:] or list(parts)
    records = [found for name in chosen for found in parts[name]()]
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in records)
    head = json.dumps(f"transformers {transformers.__version__}")
    text = f'{{"measured_with": {head},\n"records": [\n{lines}\n]}}\n'
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(f"{len(records)} records", file=sys.stderr)


if __name__ == "__main__":
    main()
