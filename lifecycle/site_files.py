"""The models of the site's settings files. The launcher adds the model of the job file."""

from __future__ import annotations


def models() -> dict[str, type]:
    """From the name of a file in /etc/holdfast to its model. Imports the models, so call it late."""
    from lifecycle.heal.settings import HealSettings
    from lifecycle.health.settings import Settings
    from lifecycle.provision.hook_settings import HookSite
    from lifecycle.provision.site import Site

    return {"site": Site, "health": Settings, "heal": HealSettings, "hooks": HookSite}
