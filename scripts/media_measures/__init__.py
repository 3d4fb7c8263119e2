"""What scripts/measure_multimodal.py runs."""
