# %% [markdown]
# # Fewer bits, for keys and for values
#
# Halving the bits of a number halves the cache and what each step reads of it. The price is an
# error in every later step that reads it. An error in a **key** changes a score, and through the
# softmax the weights of *all* positions; an error in a **value** only shifts the average that it
# enters. So keys deserve the bits.
#
# A group of `n` numbers with a scale of 4 bytes takes `bits + 32 / n` bits a number.

# %%
import kvproof
from kvproof.lab import grouped

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
for name in ("bf16", "fp8"):
    print(f"{name:10} {kvproof.cache(model, tokens=1, dtype=name).bytes:>8,} B a token")
for name in ("int8", "int4"):
    kind = grouped(name)
    print(f"{kind.name:10} {kind.bits:.2f} bits a number: a scale for every {kind.block}")

# %% [markdown]
# ## Run
#
# A text is read once with each pair of types, so that every token sees the earlier ones through the
# quantized cache. **KL divergence** says how far the predictions move, in nats; **perplexity** how
# surprised the model is by the real text (lower is better). Compare `int4 / int8` with
# `int8 / int4`: the same bytes, with the four bits on the keys or on the values.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.quantize()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Eight bits are close to free in quality and double the users; that is why FP8 caches are common.
# Four bits are worth it where memory is everything, with small groups and with keys kept at eight
# if the engine can. Speed follows bytes only as long as widening the numbers again is not what
# takes the time. Perplexity on one text is a first look: check the task that the model is for.
