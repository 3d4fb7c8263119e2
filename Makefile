# Every target is one of dev.py's; see `python3 dev.py`.
TARGETS := demo test lint oracle oracle-vllm oracle-llamacpp learn lab-test bench-lab bench accuracy

.PHONY: $(TARGETS)
$(TARGETS):
	python3 dev.py $@
