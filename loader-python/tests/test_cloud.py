"""Rust datasets of files on servers."""

import http.server
import io
import threading

import pytest
from PIL import Image

import loader
from loader import DataLoader

SAMPLES = 60
LINES = "".join(f'{{"number": {number}, "text": "row {number}"}}\n' for number in range(SAMPLES)).encode()


class Files(http.server.BaseHTTPRequestHandler):
    """Serves one file, of which a request may ask for a range."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        begin, end = 0, len(LINES)
        if given := self.headers.get("Range"):
            first, _, last = given.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, end) if last else end
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", '"1"')
        if given:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(LINES)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(LINES[begin:end])

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lines_from_an_http_server(server, num_workers, tmp_path):
    rows = loader.JsonLines(f"{server}/rows.jsonl", store={"allow_http": True}, index="none")
    found = list(DataLoader(rows, batch_size=8, num_workers=num_workers))
    assert sum((batch["number"].tolist() for batch in found), []) == list(range(SAMPLES))
    assert found[0]["text"][7] == "row 7"


@pytest.fixture
def s3(monkeypatch):
    """A client of an S3 server with the bucket ``data``, and the options of the server."""
    moto = pytest.importorskip("moto.server", reason="SKIPPED: moto is not installed")
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="data")
        yield client, {"endpoint": endpoint, "region": "us-east-1", "allow_http": True}
    finally:
        server.stop()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_parquet_from_an_s3_server(s3, num_workers):
    parquet = pytest.importorskip("pyarrow.parquet", reason="SKIPPED: pyarrow is not installed")
    import pyarrow

    client, store = s3
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"number": range(SAMPLES)}), file, row_group_size=16)
    client.put_object(Bucket="data", Key="train/rows.parquet", Body=file.getvalue())
    rows = loader.Parquet("s3://data/train/*.parquet", store=store)
    found = list(DataLoader(rows, batch_size=8, num_workers=num_workers))
    assert sum((batch["number"].tolist() for batch in found), []) == list(range(SAMPLES))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_image_folder_on_an_s3_server(s3, num_workers):
    client, store = s3
    for number in range(8):
        file = io.BytesIO()
        Image.new("RGB", (4, 4), (number, 0, 0)).save(file, "png")
        name = f"{'cat' if number < 4 else 'dog'}/{number}.png"
        client.put_object(Bucket="data", Key=f"train/{name}", Body=file.getvalue())
    images = loader.ImageFolder("s3://data/train/", store=store)
    assert images.classes == ["cat", "dog"]
    assert images.samples[4] == ("s3://data/train/dog/4.png", 1)
    found = list(DataLoader(images, batch_size=4, num_workers=num_workers))
    assert [labels.tolist() for _, labels in found] == [[0] * 4, [1] * 4]
    assert [(pixels[:, 0, 0, 0] * 255).round().tolist() for pixels, _ in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_server_that_is_not_there_is_an_error():
    with pytest.raises((ValueError, FileNotFoundError), match="127.0.0.1"):
        loader.JsonLines(
            "http://127.0.0.1:1/rows.jsonl", store={"allow_http": True, "timeout": 1, "max_retries": 0}, index="none"
        )
