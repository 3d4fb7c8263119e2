# %% [markdown]
# # Blocks: paging the cache
#
# Nobody knows how long an answer will get. Reserving the longest possible for each request wastes
# most of the memory; growing one array means copying it. So engines cut the cache into blocks of a
# few tokens and keep a table for each sequence, as an operating system does with pages.
#
# A sequence of `n` tokens takes `ceil(n / block)` blocks: at most `block - 1` entries are wasted,
# half a block on average.

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
lengths = [4090, 3001, 1030]  # three sequences of one batch
rows = {
    "what they use": kvproof.cache(model, lengths=lengths, engine="formula").bytes,
    "in blocks of 16": kvproof.cache(
        model, lengths=[-(-n // 16) * 16 for n in lengths], engine="formula"
    ).bytes,
    "padded to the longest": kvproof.cache(model, lengths=lengths).bytes,
    "8,192 reserved for each": kvproof.cache(
        model, lengths=lengths, static_length=8192
    ).allocated_bytes,
}
for name, size in rows.items():
    print(f"{name:24} {size / 2**20:>8,.1f} MiB")

# %% [markdown]
# ## Run
#
# 32 sequences of random lengths in pools of every block size: the entries that the pool has handed
# out beyond those in use, and the time of one attention step through the table.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.blocks()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Sixteen tokens a block is a good default: well under one per cent is wasted on long sequences, and
# reading through the table costs next to nothing because each look-up serves a whole block. Larger
# blocks suit kernels that read in bigger steps, and hybrid models whose states are padded to a
# common page; they also make prefix sharing coarser, for only whole blocks are shared. A server
# that reserves the longest context for each request serves a fraction of the users that one with
# blocks does.
