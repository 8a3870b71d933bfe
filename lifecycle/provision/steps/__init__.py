"""The steps of provisioning, one module for each subject. `lifecycle.provision.plan` has their order."""
