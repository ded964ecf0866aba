import { defineConfig } from 'vite'

const { PENSTOCK_URL = 'http://localhost:3000', ELECTRIC_SECRET } = process.env

// What stands between a browser and Penstock decides what the browser may see, and adds the secret. A server of
// yours would also look at who asks; see docs/guides/shapes.md.
const proxy = {
  '/items': {
    target: PENSTOCK_URL,
    changeOrigin: true,
    rewrite: (path) => {
      const asked = new URL(path, PENSTOCK_URL).searchParams
      const sent = new URLSearchParams({ table: 'items' })
      for (const name of ['offset', 'handle', 'live', 'live_sse', 'cursor', 'expired_handle', 'cache-buster'])
        if (asked.has(name)) sent.set(name, asked.get(name))
      if (ELECTRIC_SECRET) sent.set('secret', ELECTRIC_SECRET)
      return `/v1/shape?${sent}`
    },
  },
}

export default defineConfig({
  esbuild: { jsx: 'automatic' },
  server: { proxy },
  preview: { proxy },
})
