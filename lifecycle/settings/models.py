"""The site's settings by the names of their files; the launcher adds the job file."""

from __future__ import annotations


def models() -> dict[str, type]:
    """The model of each file in /etc/holdfast that is described by a model, imported now."""
    from lifecycle.heal.settings import HealSettings
    from lifecycle.health.settings import Settings
    from lifecycle.provision.site import Site

    return {"site": Site, "health": Settings, "heal": HealSettings}
