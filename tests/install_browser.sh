#!/bin/sh
# Find Chromium for the browser tests, or install it as root. Without it the tests are skipped; under CI=true they fail.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium for the browser tests"
    apt-get update -qq >/dev/null 2>&1
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 && exit 0
fi
echo "no Chromium: the browser tests are skipped (install Debian's package chromium)"
[ "$CI" != true ]
