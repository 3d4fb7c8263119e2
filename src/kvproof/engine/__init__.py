"""Engines: one module each; how slots become blocks, groups, buffers and pools."""
