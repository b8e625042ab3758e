"""The small residual networks of the CIFAR papers, which torchvision and timm do not have."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def initialise(model: nn.Module) -> None:
    """He initialisation, which these networks were published with."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Subsample(nn.Module):
    """The parameter-free shortcut ("option A"): every second pixel, new channels are zero."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.new_channels))


class BasicBlock(nn.Module):
    """conv-bn-relu-conv-bn, add, relu (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else Subsample(outputs - inputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class PreBasicBlock(nn.Module):
    """bn-relu-conv twice, with dropout between if asked for (Zagoruyko & Komodakis 2016)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv3x3(inputs, width, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), conv3x3(width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        same = inputs == width and stride == 1
        self.project = None if same else conv1x1(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(x), inplace=True)
        shortcut = x if self.project is None else self.project(y)
        y = F.relu(self.bn2(self.conv1(y)), inplace=True)
        return self.conv2(self.dropout(y)) + shortcut


class PreBottleneck(nn.Module):
    """bn-relu-conv three times, narrow in the middle (He et al. 2016)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv1x1(inputs, width)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), conv3x3(width, width, stride)
        self.bn3, self.conv3 = nn.BatchNorm2d(width), conv1x1(width, outputs)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        same = inputs == outputs and stride == 1
        self.project = None if same else conv1x1(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(x), inplace=True)
        shortcut = x if self.project is None else self.project(y)
        y = F.relu(self.bn2(self.conv1(y)), inplace=True)
        y = F.relu(self.bn3(self.conv2(y)), inplace=True)
        return self.conv3(self.dropout(y)) + shortcut


class CifarResNet(nn.Module):
    """He et al. 2015, section 4.2: three stages of 16, 32 and 64 channels."""

    def __init__(self, blocks: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(3, 16), nn.BatchNorm2d(16)
        layers: list[nn.Module] = []
        inputs = 16
        for stage, width in enumerate((16, 32, 64)):
            for block in range(blocks):
                layers.append(BasicBlock(inputs, width, 2 if stage and not block else 1))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class PreActResNet(nn.Module):
    """Pre-activation networks: ResNet-164 with bottlenecks, Wide ResNets with basic blocks."""

    def __init__(
        self,
        block: type[PreBasicBlock | PreBottleneck],
        blocks: int,
        classes: int,
        widen: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(3, 16)
        layers: list[nn.Module] = []
        inputs = 16
        for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                layers.append(block(inputs, width, stride, dropout))
                inputs = width * block.expansion
        self.blocks = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.blocks(self.conv1(x))), inplace=True)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def blocks_per_stage(depth: int, layers: int, others: int) -> int:
    """Blocks in each stage of a network of `depth` = `layers` * blocks + `others`."""
    blocks, rest = divmod(depth - others, layers)
    if rest or blocks < 1:
        raise ValueError(f"depth is {depth}, it must be {layers}n + {others}")
    return blocks
