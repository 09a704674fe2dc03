# Training with engine=openrlhf on CUDA: docker build -f docker/cluster.Dockerfile -t paw-gym-cluster .
# The steps are those of docs/cluster.md. devel: flash-attn is compiled with nvcc, of the CUDA that torch is built for.
# `docker buildx imagetools inspect IMAGE:TAG` shows the digest of a newer image.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:7d2f6a8c2071d911524f95061a0db363e24d27aa51ec831fcccf9e76eb72bc92 AS packages
COPY --from=ghcr.io/astral-sh/uv:0.9.5@sha256:f459f6f73a8c4ef5d69f4e6fbbdb8af751d6fa40ec34b39a1ab469acd6e289b7 /uv /usr/local/bin/uv

RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git libnuma1 \
    && rm -rf /var/lib/apt/lists/*
# Ubuntu 24.04 has Python 3.12; the pinned set is for 3.11.
ENV UV_PYTHON_INSTALL_DIR=/opt/python PATH=/opt/cluster/bin:$PATH PIP_NO_CACHE_DIR=1
RUN uv venv --python 3.11 --seed /opt/cluster

WORKDIR /opt/paw-gym
COPY requirements/install.txt requirements/cluster.txt requirements/
RUN pip install --no-deps --require-hashes -r requirements/install.txt -r requirements/cluster.txt

# By far the longest step, and apart: nothing but its own requirement and those before it makes it run again.
# 90 is Hopper (H100, H200); for A100: --build-arg FLASH_ATTN_CUDA_ARCHS=80. It would fetch a wheel if not forced to build.
FROM packages AS flash-attn
ARG MAX_JOBS=8
ARG FLASH_ATTN_CUDA_ARCHS=90
COPY requirements/flash-attn.txt requirements/
RUN FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTN_CUDA_ARCHS=$FLASH_ATTN_CUDA_ARCHS MAX_JOBS=$MAX_JOBS pip wheel --wheel-dir /wheels --no-deps --require-hashes --no-build-isolation -r requirements/flash-attn.txt

FROM packages
RUN --mount=type=bind,from=flash-attn,source=/wheels,target=/wheels pip install --no-deps --no-index --find-links /wheels flash-attn
COPY requirements/deepspeed.txt requirements/
RUN DS_BUILD_OPS=0 pip install --no-deps --require-hashes --no-build-isolation -r requirements/deepspeed.txt
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY paw_gym paw_gym
COPY paw_train paw_train
COPY env_servers env_servers
COPY recipes recipes
RUN pip install --no-deps --no-build-isolation .

RUN useradd --create-home paw
USER paw
ENTRYPOINT ["paw"]
CMD ["--help"]
