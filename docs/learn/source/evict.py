# %% [markdown]
# # Keeping only some positions
#
# The length of a cache can be bounded by dropping entries. It is the one lever that changes what
# the model *sees*: what is dropped is gone.
#
# - **window**: the last `B` positions;
# - **sinks**: the first four as well. Models park attention on the first tokens, and miss them;
# - **heavy**: those that later tokens paid most attention to, chosen for each head apart.
#
# A bound of `B` entries makes the cache at most `ceil(B / block) x block` entries, however long the
# text gets.

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
per_token = kvproof.cache(model, tokens=1).bytes
for budget in (4096, 131072):
    print(f"{budget:>7,} entries x {per_token:,} B = {budget * per_token / 2**30:.2f} GiB at most")

# %% [markdown]
# ## Run
#
# Two questions to each policy and budget. How well is a text still predicted (perplexity)? And is a
# number found again that was told at the start, in the middle or at the end of a page (needles)?
# *In reach* is what can be foretold for a window: the number's position is still among those kept.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.evict()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Read the needles of the run above with care: with the whole cache this small model found none of
# the three numbers itself, so its misses do not show what eviction costs. The perplexities do.
#
# Perplexity alone flatters eviction: most words depend on the last few. A chat that must remember
# its instructions, or an answer out of a long document, fails exactly where the number was dropped,
# and nothing in the metrics shows it. Models that were *trained* with windows interleave them with
# full layers for that reason; cutting the cache of a model that was not is a change of the model.
