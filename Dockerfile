# The agent's image. Debian's own Python runs it; the dependencies come from the lock with their hashes.
FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY tools/bootstrap.txt tools/bootstrap.txt
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --require-hashes --requirement tools/bootstrap.txt
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN UV_PROJECT_ENVIRONMENT=/opt/node-agent /opt/uv/bin/uv sync --locked --no-dev --no-install-project --python /usr/bin/python3 --no-cache
COPY node_agent node_agent
RUN UV_PROJECT_ENVIRONMENT=/opt/node-agent /opt/uv/bin/uv sync --locked --no-dev --no-editable --python /usr/bin/python3 --no-cache --compile-bytecode

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/node-agent /opt/node-agent
ENV PATH=/opt/node-agent/bin:$PATH PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="gpu-node-agent" \
      org.opencontainers.image.description="One node agent for GPUs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
HEALTHCHECK --interval=30s --timeout=5s CMD ["node-agent", "status", "--check"]
ENTRYPOINT ["node-agent"]
CMD ["run"]
