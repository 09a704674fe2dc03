"""Downloading data sets: manifests, resume, checksums, receipts."""

from __future__ import annotations

from paw_gym.data.dataset import (
    Manifest,
    dataset_names,
    default_folder,
    download_dataset,
    load_manifest,
    read_receipt,
    verify_dataset,
)
from paw_gym.data.fetch import DataFile, DownloadError

__all__ = [
    "DataFile",
    "DownloadError",
    "Manifest",
    "dataset_names",
    "default_folder",
    "download_dataset",
    "load_manifest",
    "read_receipt",
    "verify_dataset",
]
