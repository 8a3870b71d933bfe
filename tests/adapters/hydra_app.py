"""A hydra application whose task trains under Holdfast; run as a sweep with hydra's submitit launcher."""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from holdfast import Torchrun


@hydra.main(version_base="1.3", config_path=None)
def main(config: DictConfig) -> float:
    out = Path(HydraConfig.get().runtime.output_dir)
    number = HydraConfig.get().job.num
    run = Torchrun(
        Path(__file__).with_name("hydra_train.py"), str(config.lr), str(out / "loss"), name=f"sweep-{number}",
        checkpoint={"namespace": f"sweep-{number}", "memory": {"every_steps": 2}},
    )  # fmt: skip
    outcome = run()
    assert outcome["name"] == "done", outcome
    return float((out / "loss").read_text())


if __name__ == "__main__":
    main()
