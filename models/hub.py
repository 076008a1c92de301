"""Fetches a model from the Hugging Face hub, or what stands at HF_ENDPOINT, with `huggingface_hub`.

Only a token that is in HF_TOKEN is sent there.
"""

from __future__ import annotations

import os
from pathlib import Path

from edge.errors import ModelError
from edge.models.manifest import file_sha256
from edge.models.modelfiles import wanted


def fetch_hub(repository: str, revision: str, target: Path) -> dict[str, str]:
    """Downloads a model's files into a folder. Files that arrived whole stay there after a failure, and the next call
    fetches the rest.

    Args:
        repository: `organisation/name`.
        revision: commit, branch or tag.

    Returns:
        Where the files came from, with the commit that `revision` named.

    Raises:
        ModelError: the hub cannot be reached, has no such model, or sent other bytes than it announced.
    """
    from huggingface_hub import HfApi, hf_hub_download

    # The library reads the variable when it is first imported, which may have been before it was set.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    # Left to itself the library sends the token of whoever is logged in to any hub, even for a public model.
    token = os.environ.get("HF_TOKEN") or False
    try:
        info = HfApi(endpoint=endpoint, token=token).model_info(repository, revision=revision, files_metadata=True)
        files = {item.rfilename: item for item in info.siblings or []}
        names = wanted(files)
        if not any(name.endswith(".safetensors") for name in names):
            raise ModelError(f"{repository} has no safetensors weights")
        for name in names:
            path = hf_hub_download(
                repository, name, revision=info.sha, local_dir=target, endpoint=endpoint, token=token
            )
            lfs = files[name].lfs
            if lfs is not None and file_sha256(Path(path)) != lfs.sha256:
                Path(path).unlink()
                raise ModelError(f"{repository}: {name} arrived damaged (its sha256 is not the announced one)")
    except ModelError:
        raise
    except Exception as error:  # the library raises its own, its HTTP client's and the system's errors
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(
            f"{repository} could not be fetched ({reason}); "
            "files that arrived whole are kept, the same command fetches the rest"
        ) from error
    return {"hub": repository, "revision": str(info.sha)}
