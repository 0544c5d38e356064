"""One simulated device: a real agent with its own folder, its share of the data and a given channel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.benchmarks.simulate.boards import BoardConfig, BoardCourier
from sparsyedge.benchmarks.simulate.hostile_members import ATTACKS
from sparsyedge.benchmarks.simulate.shares import Shares
from sparsyedge.edge.data import Samples
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.device.energy import EnergyMeter, open_meter
from sparsyedge.edge.device.equipment import DeviceFiles, Equipment, Power
from sparsyedge.edge.device.evaluation import EvaluationDesk
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.device.task_inputs import DecodedModel
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.training.session import Runtime
from sparsyedge.edge.training.session_holder import SessionHolder

__all__ = ["BOOT_ID", "SOFTWARE", "Backend", "DeviceRoom", "Setup"]

BOOT_ID = "simulated"
SOFTWARE = "sparsyedge simulate"

Backend = Literal["ort", "torch"]
"""What runs the training steps: the devices' graphs, or plain torch."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process needs to play any of the devices."""

    fleet: str
    devices_dir: str
    shares_dir: str
    threads: int
    meter: str
    runtime: Runtime | None = None
    backend: Backend = "ort"
    hostile: dict[str, str] = msgspec.field(default_factory=dict)
    """Devices that attack the run, each with its row of benchmarks/simulate/hostile_members.py."""
    boards: dict[str, str] = msgspec.field(default_factory=dict)
    """The board of each device, where the simulation declares any."""
    board_costs: dict[str, BoardConfig] = msgspec.field(default_factory=dict)


class DeviceRoom:
    """Shared by the devices of one process: the data on disk, the holder, the model as decoded, and the meter."""

    def __init__(self, setup: Setup) -> None:
        self.topics = Topics(setup.fleet)
        self._devices_dir = Path(setup.devices_dir)
        self._shares = Shares(Path(setup.shares_dir))
        self._holder = _holder(setup)
        self._desk = EvaluationDesk(threads=setup.threads)
        self._decoded = DecodedModel()
        self._hostile = setup.hostile
        self._boards = setup.boards
        self._board_costs = setup.board_costs
        self._meter: EnergyMeter = open_meter(setup.meter)

    def close(self) -> None:
        """Stop the meter."""
        self._meter.stop()

    def agent(self, device: str, channel: Channel) -> tuple[Agent, Courier]:
        """The device in the state it was left in, ready to join over the channel."""
        samples = self._shares.of(device)
        if device in self._hostile:
            return self._hostile_agent(device, channel, samples)
        return self._agent(device, self._courier(device, channel, samples), samples, self._holder)

    def _courier(self, device: str, channel: Channel, samples: Samples) -> Courier:
        member, board = self._member(device, samples), self._boards.get(device)
        if board is None:
            return Courier(channel, member)
        return BoardCourier(channel, member, board=board, cost=self._board_costs[board])

    def _hostile_agent(self, device: str, channel: Channel, samples: Samples) -> tuple[Agent, Courier]:
        attack = ATTACKS[self._hostile[device]]
        samples = attack.poison(samples)
        courier = attack.courier(channel, self._member(device, samples))
        return self._agent(device, courier, samples, attack.holder(self._holder, device))

    def _member(self, device: str, samples: Samples) -> Member:
        return Member(device=device, topics=self.topics, boot_id=BOOT_ID, software=SOFTWARE, samples=len(samples))

    def _agent(self, device: str, courier: Courier, samples: Samples, holder: SessionHolder) -> tuple[Agent, Courier]:
        equipment = Equipment(
            data=LocalData(samples),
            files=DeviceFiles(self._devices_dir / device, keeps_jobs=False),
            holder=holder,
            power=Power(self._meter),
            desk=self._desk,
            decoded=self._decoded,
        )
        return Agent(courier, equipment, until_finished=True), courier


def _holder(setup: Setup) -> SessionHolder:
    if setup.backend == "ort":
        return SessionHolder(threads=setup.threads, runtime=setup.runtime)
    # Imported here: torch takes seconds to load, and a simulation on the devices' runtime does not need it.
    from sparsyedge.benchmarks.simulate.torch_session import TorchWorkbench

    return TorchWorkbench(threads=setup.threads)
