"""Probing: asks a running server what it holds, and reads it into the Log that `check` compares.

fetch       one bounded GET at a time
exposition  Prometheus' text form
live        what a server does now: queues, usage, latencies
vllm sglang local    one reader an engine family: pages to a Reading
probe       which reader a server answers to, and the report
"""
