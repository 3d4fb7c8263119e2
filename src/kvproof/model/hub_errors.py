"""What a failure of the hub means, and what to do about it."""

from __future__ import annotations

from kvproof.errors import HubError, HubUnreachedError

# The library's exception names, from the most to the least special (each is a class of
# huggingface_hub.errors, or of the HTTP client below it).
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    ("GatedRepoError", "{repo} is gated",
     "accept its terms on its page and set HF_TOKEN (hf auth login)"),
    ("DisabledRepoError", "{repo} has been disabled on the hub", "name another repository"),
    ("RepositoryNotFoundError", "the hub has no {repo}, or it is private",
     "check the name; for a private one set HF_TOKEN (hf auth login)"),
    ("RevisionNotFoundError", "{repo} has no such revision", "check the revision"),
    ("LocalEntryNotFoundError", "{repo} is not in the local cache and the hub can't be asked",
     "go online once, or unset HF_HUB_OFFLINE"),
    ("EntryNotFoundError", "{repo} lacks a file that is needed",
     "give a local folder or config.json"),
    ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set and {repo} is not in the cache",
     "unset it once"),
    ("HFValidationError", "{repo} is no hub name", "write org/name"),
)  # fmt: skip
_UNASKED = ("LocalEntryNotFoundError", "OfflineModeIsEnabled")


def explained(error: Exception, repo_id: str) -> HubError:
    """One line for a failure of the hub or of the network on the way to it."""
    names = {kind.__name__ for kind in type(error).__mro__}
    for name, what, hint in _MEANINGS:
        if name in names:
            kind = HubUnreachedError if name in _UNASKED else HubError
            return kind(what.format(repo=repo_id[:80]), hint=hint)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return HubError(f"the hub refuses {repo_id[:80]} ({status})", hint="set a valid HF_TOKEN")
    if status is not None:
        return HubError(f"the hub answers {status} for {repo_id[:80]}", hint="try again later")
    return HubUnreachedError(
        f"the hub can't be reached for {repo_id[:80]} ({type(error).__name__})",
        hint="check the network or HF_ENDPOINT, or give a local config.json",
    )
