# partwise without CUDA. Build: docker build -t partwise .
#
# A node of a federation keeps its data, key and state outside the image. Let the folder /data/graz hold graz.toml, the
# table, the key and the certificate (docs/federation.md); user 1000 must be able to write there:
#   docker run --restart on-failure -v /data/graz:/work partwise \
#       node graz.toml --server fl.example.org:9443 --ca ca.pem --key Graz.key
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY partwise partwise
# The CPU build of torch has the version of constraints.txt, and comes from its own index.
RUN useradd --create-home --uid 1000 partwise \
    && pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt \
        ".[data,images,tables,flower]"

USER 1000
WORKDIR /work
ENTRYPOINT ["partwise"]
CMD ["--help"]
