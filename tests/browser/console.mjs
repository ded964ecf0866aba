// The console in a real Chromium, driven by lines of JSON: a request on stdin, its answer on stdout.
//
//   open        url                 the page
//   go          screen              by its address
//   wait        selector            until there is one, and it is seen; gone: until there is none
//   click       selector            fill: selector, text       choose: selector, value       press: key
//   text        selector            of the first, once it is there
//   count       selector
//   size        width, height       scheme: light or dark
//   evaluate    script              what it gives
//   screenshot  path
//
// Whatever the page reports as an error, a broken rule of its own policy above all, fails the next request.

import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run', '--hide-scrollbars'],
})
const page = await browser.newPage({ viewport: { width: 1440, height: 900 }, colorScheme: 'light', reducedMotion: 'no-preference' })
page.setDefaultTimeout(90_000)
const problems = []
page.on('pageerror', (error) => problems.push(String(error.stack ?? error)))
page.on('console', (message) => {
  // A server that is away, or refuses, is what some tests are about.
  if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) problems.push(message.text())
})
const asked = []
page.on('request', (request) => asked.push(request.url()))

const requests = {
  open: ({ url }) => page.goto(url, { waitUntil: 'commit' }),
  go: ({ screen }) => page.evaluate((to) => { location.hash = `#/${to}` }, screen),
  wait: ({ selector }) => page.locator(selector).first().waitFor({ state: 'visible' }),
  attached: ({ selector }) => page.locator(selector).first().waitFor({ state: 'attached' }),
  gone: ({ selector }) => page.locator(selector).first().waitFor({ state: 'detached' }),
  click: ({ selector }) => page.locator(selector).first().click(),
  fill: ({ selector, text }) => page.locator(selector).first().fill(text),
  choose: ({ selector, value }) => page.locator(selector).first().selectOption(value),
  press: ({ key }) => page.keyboard.press(key),
  text: ({ selector }) => page.locator(selector).first().innerText(),
  count: ({ selector }) => page.locator(selector).count(),
  size: ({ width, height }) => page.setViewportSize({ width, height }),
  scheme: ({ scheme }) => page.emulateMedia({ colorScheme: scheme }),
  evaluate: ({ script }) => page.evaluate(script),
  screenshot: ({ path }) => page.screenshot({ path }),
  asked: () => asked,
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  let answer
  try {
    const found = await requests[request.do](request)
    if (problems.length) throw new Error(problems.join('\n'))
    const isPlain = found === null || ['string', 'number', 'boolean'].includes(typeof found) || Array.isArray(found)
    answer = { result: isPlain ? found : null }
  } catch (error) {
    answer = { error: String(error?.stack ?? error) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
await browser.close()
process.exit(0)
