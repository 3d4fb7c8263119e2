# %% [markdown]
# # A shared beginning is computed once
#
# Many requests begin alike: the same instructions, the same document, the same conversation so far.
# Keys and values depend only on the tokens up to their position, so equal beginnings have equal
# entries. Blocks are named by a chain of hashes, each over the block's tokens and the name before
# it; a new request looks its own chain up and takes what is there.
#
# Of `s` shared tokens, `floor(s / block) x block` are found, and never the last token of a prompt:
# somebody has to compute its logits.

# %%
block = 16
for shared, prompt in ((64, 256), (255, 256), (256, 256)):
    found = min(shared, prompt - 1) // block * block
    print(f"{shared} of {prompt} tokens shared: {found} found, {prompt - found} computed")

# %% [markdown]
# ## Run
#
# Two prompts, one after the other, that share more and more of their beginning. The second must
# say what it says alone.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.prefix()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Prefix caching saves prefill, so it shortens the time to the first token and frees the processor;
# the answer's own steps cost as before, and still read every entry, shared or not. One differing
# token early in the prompt (a date, a user's name) ends the match there: put what changes last.
# Kept blocks are the first to go when memory is short, so a hit rate belongs to a load, not to a
# server.
