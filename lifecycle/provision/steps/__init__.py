"""The steps, one subject a module; `lifecycle.provision.plan` has their order."""
