# %% [markdown]
# # Why there is a cache at all
#
# A causal model looks only backward, so the keys and values of a token are the same at every later
# step. Without a cache each step sends the whole text through the model again to get them back;
# with one, each step sends only the newest token.
#
# With `P` tokens in, `G` out and `N` parameters, a pass costs about two operations for every
# parameter and token:
#
# `with: 2N x G`, `without: 2N x G x (P + G/2)`
#
# The first output token comes out of the prompt's own pass, so exactly `G - 1` steps are counted.

# %%
import kvproof
from kvproof.timing import without_cache

small = without_cache(kvproof.load_model("meta-llama/Llama-3.1-8B"), prompt=4, output=4)
print("step   with   without    (tokens through the model; 4 in, 4 out)")
for row in small.table():
    print(f"{row.step:4} {row.with_cache:6} {row.without_cache:9}")
whole = without_cache(kvproof.load_model("meta-llama/Llama-3.1-8B"), prompt=1000, output=500)
print(f"1,000 in, 500 out: {whole.flops_with / 1e12:.1f} TFLOP with,", end=" ")
print(f"{whole.flops_without / 1e12:,.0f} without: {whole.ratio:,.0f} times")

# %% [markdown]
# ## Run
#
# The same comparison on a model that a laptop runs: the tokens that really go through it are
# counted, the time of each step is taken, and both ways must say the same words.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.cache_or_not()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Nobody serves without a cache; the comparison says what a lost cache costs. Every time a paused
# or evicted conversation is computed again, it pays the right-hand side once. And it says what is
# traded: arithmetic that would grow with the square of the length becomes memory that grows with
# the length, and a step that was limited by products becomes one that is limited by reading.
