#!/bin/sh
# What REPRIOR_TEST_ALL=1 needs beside `pip install '.[test-all]'`: real brokers, a browser and its driver, Java for Spark.
set -e
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  redis-server mosquitto nats-server chromium chromium-driver fonts-dejavu-core openjdk-17-jre-headless
