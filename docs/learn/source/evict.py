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
# Two questions to each policy and budget. How well is a text still predicted (perplexity)? And how
# many numbers are found again that a page told, each in a sentence about something else: "The
# password of the bank is 3201"? The page is read and cut first; only then is each sentence begun
# again, to see whether its number follows. *Held* says how much of those sentences is still in the
# cache, over all layers and heads; for windows and sinks it can be foretold.

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
# With the whole cache the model finds nearly every number. A window finds what it still holds, or
# less, so half the bytes cost half the answers. Its perplexity is bad as well, because the first
# tokens are gone; four sinks repair that, but no number that was dropped comes back with them.
#
# Heavy hitters are the lesson. They predict the text best of all and find the fewest numbers, with
# as many entries of them held as a window has. What they keep is what drew attention *so far*:
# beginnings, commas, common words. Nobody attends to a number before it is asked for, and of a
# number that some heads keep and others drop, too little is left.
#
# So perplexity flatters eviction: most words depend on the last few and on the start. A chat that
# must remember its instructions, or an answer out of a long document, fails exactly where the fact
# was dropped, and nothing in the metrics shows it. Models that were *trained* with windows
# interleave them with full layers for that reason; cutting the cache of a model that was not is a
# change of the model.
