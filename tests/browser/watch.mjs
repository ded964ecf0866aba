// A page in a real Chromium, driven by lines of JSON: a request on stdin, its answer on stdout.
//
//   open        url           the page, once it has loaded
//   text        selector      the text of the first element, once it is there
//   rows        selector      for each such row, the text of its cells
//   count       selector      how many such elements there are
//   screenshot  path

import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: [
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--no-first-run',
  ],
})
const page = await browser.newPage({ viewport: { width: 800, height: 460 } })
const problems = []
page.on('pageerror', (error) => problems.push(String(error)))

const requests = {
  open: ({ url }) => page.goto(url),
  text: ({ selector }) => page.locator(selector).first().innerText(),
  rows: ({ selector }) =>
    page.$$eval(selector, (rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText))),
  count: ({ selector }) => page.locator(selector).count(),
  screenshot: ({ path }) => page.screenshot({ path }),
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  let answer
  try {
    const found = await requests[request.do](request)
    if (problems.length) throw new Error(problems.join('\n'))
    answer = { result: typeof found === 'object' && !Array.isArray(found) ? null : found ?? null }
  } catch (error) {
    answer = { error: String(error?.stack ?? error) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
await browser.close()
process.exit(0)
