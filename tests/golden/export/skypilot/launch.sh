#!/usr/bin/env bash
# Every instance of the plan.
set -eu
here="$(dirname "$0")"
sky launch --detach-run --yes --cluster small-12b-prefill-3c67242e-0 "$here/aws_us-east-2/small-12b-prefill-3c67242e.yaml"
sky jobs launch --detach-run --yes --name small-12b-decode-20c60c0c-0 "$here/aws_us-east-2/small-12b-decode-20c60c0c.yaml"
sky jobs launch --detach-run --yes --name small-12b-decode-20c60c0c-1 "$here/aws_us-east-2/small-12b-decode-20c60c0c.yaml"
sky launch --detach-run --yes --cluster small-12b-decode-11d7e68b-0 "$here/gcp_us-central1/small-12b-decode-11d7e68b.yaml"
sky launch --detach-run --yes --cluster small-12b-decode-11d7e68b-1 "$here/gcp_us-central1/small-12b-decode-11d7e68b.yaml"
sky launch --detach-run --yes --cluster small-12b-decode-11d7e68b-2 "$here/gcp_us-central1/small-12b-decode-11d7e68b.yaml"
