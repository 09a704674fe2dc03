# The gateway, the shop and the retriever (no torch): docker build -f docker/servers.Dockerfile -t paw-gym-servers .
# A server that listens outside the container needs a token: -e PAW_SERVE_TOKEN=...
# `docker buildx imagetools inspect IMAGE:TAG` shows the digest of a newer image.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

WORKDIR /opt/paw-gym
COPY requirements requirements
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/install.txt -r requirements/servers.txt
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY paw_gym paw_gym
COPY paw_train paw_train
COPY env_servers env_servers
COPY recipes recipes
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

RUN useradd --create-home paw
USER paw
WORKDIR /home/paw
EXPOSE 8000
ENTRYPOINT ["paw", "serve"]
CMD ["gateway", "--host", "0.0.0.0", "--port", "8000"]
