"""Cards that may look for their coordinator, and cards that know where it is."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.edge.cli import main
from sparsyedge.hardware.flash.fleet_authority import Inviter
from sparsyedge.hardware.flash.next_steps import after_bundle


def inviter(fleet: Path, host: str | None) -> Inviter:
    return Inviter(devices=["pi-01"], authority=fleet, host=host, dataset=None, share=None)


def test_a_card_without_a_coordinator_looks_for_it_where_the_named_one_does_not_answer(tmp_path: Path) -> None:
    assert main(["coordinator", "init", str(tmp_path / "fleet"), "--host", "coordinator.local"]) == 0
    made = inviter(tmp_path / "fleet", None).invite("pi-01")
    assert (made.host, made.find) == ("coordinator.local", True)
    assert "in one network with a coordinator that announces itself" in " ".join(
        after_bundle(Path("pi-01.sh"), made, authority=None)
    )


def test_a_card_that_is_told_where_its_coordinator_is_looks_nowhere_else(tmp_path: Path) -> None:
    assert main(["coordinator", "init", str(tmp_path / "fleet"), "--host", "coordinator.local"]) == 0
    made = inviter(tmp_path / "fleet", "192.168.7.2").invite("pi-01")
    assert (made.host, made.find) == ("192.168.7.2", False)


def test_a_card_of_a_cluster_knows_its_nodes_and_does_not_look(tmp_path: Path) -> None:
    assert main(["coordinator", "init", str(tmp_path / "fleet"), "--host", "a,b,c", "--broker", "nats"]) == 0
    assert not inviter(tmp_path / "fleet", None).invite("pi-01").find
