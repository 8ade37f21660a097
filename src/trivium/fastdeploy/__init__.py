"""Runs scripts written for FastDeploy's offline inference, unchanged: `python -m trivium.fastdeploy SCRIPT ARGS…`."""

from __future__ import annotations

from trivium.fastdeploy.aliases import install_aliases

__all__ = ["install_aliases"]
