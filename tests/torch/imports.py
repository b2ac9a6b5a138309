"""What the processes of agent.py have imported before they begin; the first two torch imports at their first use."""

import fsspec  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.nn.parallel  # noqa: F401

import normstorm.torch  # noqa: F401
