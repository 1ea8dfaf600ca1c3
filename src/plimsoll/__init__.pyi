from plimsoll.engine import Allocator as Allocator
from plimsoll.engine import MemoryPool as MemoryPool
from plimsoll.engine import SimulatedGpu as SimulatedGpu
from plimsoll.engine import SimulatedMachine as SimulatedMachine
from plimsoll.errors import DriverError as DriverError
from plimsoll.errors import InputError as InputError
from plimsoll.errors import OutOfMemoryError as OutOfMemoryError
from plimsoll.errors import ScriptError as ScriptError
from plimsoll.predict import Fit as Fit
from plimsoll.predict import Prediction as Prediction
from plimsoll.predict import fit as fit
from plimsoll.predict import predict as predict
from plimsoll.replay import ReplayResult as ReplayResult
from plimsoll.replay import replay as replay
from plimsoll.tiers.offload import offload as offload
from plimsoll.torch.install import install as install

__version__: str
