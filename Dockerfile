# The agent's image. Debian's own Python runs it; whatever is installed comes from the lock, with its hashes.
# What changes least comes first: an update of the agent is a layer of a few MB over those that nodes have already.
FROM debian:bookworm-slim AS dependencies
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
# With a date given, bytecode is compiled by what its source contains, so that a build may set all times (--timestamp): the
# same commit makes the same image, and none of it is compiled anew at each start.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0
WORKDIR /src
COPY tools/bootstrap.txt tools/bootstrap.txt
RUN python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --require-hashes --requirement tools/bootstrap.txt
COPY pyproject.toml uv.lock ./
RUN /opt/tools/bin/uv export --quiet --locked --only-group build --no-emit-project --output-file build.txt \
 && /opt/tools/bin/uv export --quiet --locked --no-dev --no-emit-project --output-file run.txt \
 && /opt/tools/bin/pip install --require-hashes --requirement build.txt \
 && python3 -m venv --without-pip /opt/node-agent \
 && /opt/tools/bin/pip --python /opt/node-agent/bin/python install --require-hashes --only-binary :all: --requirement run.txt

FROM dependencies AS build
COPY README.md LICENSE ./
COPY node_agent node_agent
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /tmp . \
 && /opt/tools/bin/pip --python /opt/node-agent/bin/python install --no-deps --no-index --root /agent /tmp/*.whl

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && PYTHONHASHSEED=0 python3 -m compileall -qf --invalidation-mode unchecked-hash /usr/lib/python3.11 \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=dependencies /opt/node-agent /opt/node-agent
COPY --from=build /agent/opt/node-agent /opt/node-agent
ENV PATH=/opt/node-agent/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.title="gpu-node-agent" \
      org.opencontainers.image.description="One node agent for GPUs on Kubernetes" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
HEALTHCHECK --interval=30s --timeout=5s CMD ["node-agent", "status", "--check"]
ENTRYPOINT ["node-agent"]
CMD ["run"]
